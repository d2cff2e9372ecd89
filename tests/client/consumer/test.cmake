# SPDX-License-Identifier: Apache-2.0
# Installs libqrd and libqrd-dev to an empty prefix, moves the tree, and builds and runs the stranger's
# project against it by find_package and by pkg-config.
# cmake -D BUILD=... -D SOURCE=... -D LIBDIR=... -D GENERATOR=... -D CC=... -D CXX=... -D FLAGS=... -P test.cmake
execute_process(COMMAND mktemp -d /tmp/qrd-consumer-XXXXXX OUTPUT_VARIABLE work
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

function(finish message)
  file(REMOVE_RECURSE ${work})
  if(message)
    message(FATAL_ERROR "${message}")
  endif()
endfunction()

function(run out)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    finish("${command}\nfailed (${result}):\n${output}${errors}")
  endif()
  set(${out} "${output}" PARENT_SCOPE)
endfunction()

foreach(component libqrd libqrd-dev)
  run(ignored ${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/first --component ${component})
endforeach()
# Nothing in the tree may remember where it was installed.
file(RENAME ${work}/first ${work}/prefix)

run(ignored ${CMAKE_COMMAND} -S ${SOURCE} -B ${work}/build -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${work}/prefix
  -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_C_FLAGS=${FLAGS} -DCMAKE_CXX_FLAGS=${FLAGS})
run(ignored ${CMAKE_COMMAND} --build ${work}/build)

set(ENV{PKG_CONFIG_PATH} ${work}/prefix/${LIBDIR}/pkgconfig)
run(version pkg-config --modversion qrd)
run(flags pkg-config --cflags --libs qrd)
separate_arguments(flags UNIX_COMMAND "${flags}")
separate_arguments(extra UNIX_COMMAND "${FLAGS}")
set(rpath -Wl,-rpath,${work}/prefix/${LIBDIR})
run(ignored ${CC} -std=c99 ${extra} ${SOURCE}/main.c ${flags} ${rpath} -o ${work}/pc_c)
run(ignored ${CXX} -std=c++17 ${extra} ${SOURCE}/main.cc ${flags} ${rpath} -o ${work}/pc_cc)

string(STRIP "${version}" version)
foreach(program ${work}/build/stranger_c ${work}/build/stranger_cc ${work}/pc_c ${work}/pc_cc)
  run(output ${program})
  if(NOT output MATCHES "^qrd ${version}")
    finish("${program} wrote \"${output}\", want qrd ${version}")
  endif()
endforeach()
finish("")
