# SPDX-License-Identifier: Apache-2.0
# What a program that uses qrd needs: the library, the headers, the CMake package, the pkg-config file.
# Components: libqrd (to run), libqrd-dev (to build).
include(CMakePackageConfigHelpers)

install(TARGETS qrd_client EXPORT qrd-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libqrd NAMELINK_COMPONENT libqrd-dev)
install(FILES include/qrd/qrd.h include/qrd/qrd.hpp
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qrd COMPONENT libqrd-dev)

set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/qrd)
install(EXPORT qrd-targets NAMESPACE qrd:: DESTINATION ${package_directory} COMPONENT libqrd-dev)
configure_package_config_file(cmake/qrd-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/qrd-config.cmake
  INSTALL_DESTINATION ${package_directory})
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/qrd-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/qrd-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/qrd-config-version.cmake
  DESTINATION ${package_directory} COMPONENT libqrd-dev)

# Relative to the file, so that the tree can be installed anywhere and moved.
file(RELATIVE_PATH QRD_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" QRD_PC_PREFIX "${QRD_PC_PREFIX}")
configure_file(cmake/qrd.pc.in ${CMAKE_CURRENT_BINARY_DIR}/qrd.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/qrd.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT libqrd-dev)
