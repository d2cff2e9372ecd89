#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds qrd and runs every test that this machine can run.
#
#   tests/run.sh [OPTION...]
#
#   --label NAME        only tests with this label: unit, integration, install, deploy, bench
#   --filter REGEX      only tests whose name matches
#   --sanitize LIST     address, undefined, thread or address,undefined
#   --compiler NAME     g++ (default) or clang
#   --werror            warnings are errors
#   --build-type TYPE   Debug, Release or RelWithDebInfo (default)
#   --build-dir DIR     default: build/test, with the compiler and sanitizer in its name if given
#   --jobs N            parallel compilations and tests; default: cores, bounded by memory
#   --junit FILE        also write the results as JUnit XML
#   --no-install        never install packages
#   --help
#
# The last line is "N passed, N failed", with ", N skipped" if some were; reasons stand above it.
# Exit status: 0 all passed, 1 a test or the build failed or no test ran, 2 bad arguments,
# 3 to 5 packages are missing and cannot be installed (deploy/packages.sh).
set -uo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 1
# shellcheck source=deploy/common.sh
. "$source/deploy/common.sh"
# shellcheck source=deploy/packages.sh
. "$source/deploy/packages.sh"

arguments=("$@")
label='' filter='' sanitize='' compiler=g++ werror=OFF build_type=RelWithDebInfo
build='' jobs='' junit=''
install=1
while (($#)); do
  case $1 in
    --label) label=$(qrd_value "$@") || exit; shift ;;
    --filter) filter=$(qrd_value "$@") || exit; shift ;;
    --sanitize) sanitize=$(qrd_value "$@") || exit; shift ;;
    --compiler) compiler=$(qrd_value "$@") || exit; shift ;;
    --build-type) build_type=$(qrd_value "$@") || exit; shift ;;
    --build-dir) build=$(qrd_value "$@") || exit; shift ;;
    --jobs) jobs=$(qrd_value "$@") || exit; shift ;;
    --junit) junit=$(qrd_value "$@") || exit; shift ;;
    --werror) werror=ON ;;
    --no-install) install=0 ;;
    -h | --help) sed -n '3,23s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) qrd_die 2 "unknown argument '$1'; try --help" ;;
  esac
  shift
done
case $compiler in
  g++ | gcc)
    compiler=g++ packages=(test)
    compilers=(-DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++) ;;
  clang | clang++)
    compiler=clang packages=(test clang)
    compilers=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++) ;;
  *) qrd_die 2 "--compiler: '$compiler' is not g++ or clang" ;;
esac
case $sanitize in
  '' | address | undefined | thread | address,undefined) ;;
  undefined,address) sanitize=address,undefined ;;
  *) qrd_die 2 "--sanitize: '$sanitize' is not address, undefined, thread or address,undefined" ;;
esac
case $build_type in
  Debug | Release | RelWithDebInfo) ;;
  *) qrd_die 2 "--build-type: '$build_type' is not Debug, Release or RelWithDebInfo" ;;
esac
[[ $jobs ]] && qrd_check_number --jobs "$jobs" 1 1024
if [[ ! $build ]]; then
  build=$source/build/test
  [[ $compiler == clang ]] && build+=-clang
  [[ $sanitize ]] && build+=-${sanitize//,/-}
fi
build=$(realpath -m -- "$build")  # ctest takes relative names from its test folder


# The thread sanitizers of g++ 12 and clang 14 know fewer address layouts than newer kernels use.
random_bits=$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0)
if [[ $sanitize == thread && ! ${QRD_FIXED_LAYOUT:-} ]] && ((random_bits > 28)) &&
  setarch "$(uname -m)" -R true 2>/dev/null; then
  QRD_FIXED_LAYOUT=1 exec setarch "$(uname -m)" -R "$BASH" "${BASH_SOURCE[0]}" "${arguments[@]}"
fi

if ((install)); then qrd_packages_install "${packages[@]}" || exit; fi
[[ $jobs ]] || jobs=$(qrd_jobs)

# Also for the build: test cases are listed by running the test programs.
supp=$source/tests/sanitizers
export ASAN_OPTIONS="detect_stack_use_after_return=1:strict_string_checks=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export LSAN_OPTIONS="suppressions=$supp/lsan.supp:print_suppressions=0:${LSAN_OPTIONS:-}"
export TSAN_OPTIONS="suppressions=$supp/tsan.supp:second_deadlock_stack=1:${TSAN_OPTIONS:-}"

fail_early() {
  echo "$1" >&2
  echo "0 passed, 1 failed"
  exit 1
}

qrd_say "configure ($compiler, $build_type${sanitize:+, $sanitize sanitizer}) in $build"
qrd_configure "$source" "$build" "${compilers[@]}" -DCMAKE_BUILD_TYPE="$build_type" \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="$qrd_test_flags" -DQRD_WERROR="$werror" -DQRD_SANITIZE="$sanitize" -DQRD_TESTS=ON || fail_early "configure failed"
qrd_say "build with $jobs jobs"
qrd_build "$build" "$jobs" || fail_early "the build failed"

qrd_say "test"
results=$build/tests.xml
rm -f "$results"
select=()
[[ $label ]] && select+=(-L "^$label\$")
[[ $filter ]] && select+=(-R "$filter")
ctest --test-dir "$build" -j "$jobs" --output-on-failure --output-junit "$results" "${select[@]}" \
  </dev/null 2>&1 | grep --line-buffered -Ev '^ +Start +[0-9]+:|^Errors while running|^Use "--rerun'
status=${PIPESTATUS[0]}
[[ -s $results ]] || fail_early "ctest wrote no results (status $status)"
[[ $junit ]] && cp "$results" "$junit"

awk -f "$source/tests/junit_summary.awk" "$results" || exit 1
((status == 0)) || exit 1
