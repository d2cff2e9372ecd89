#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks what deploy/ ships against the tools that will read it, and the scripts' own behaviour.
#
#   tests/deploy/check_deploy.sh units|rules|scripts [QRD-EXECUTABLE]
#
#   units    systemd-analyze verify, and a security score of at most 2.0, for every unit
#   rules    promtool check rules, promtool test rules
#   scripts  bad arguments, a system that is not Debian-like, a user without rights, what is counted
#            as passed, and that each repository rule finds its breach
#
# Exit status: 0 good, 1 not, 77 the tool that it needs is not installed.
set -uo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 1
cd "$top" || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

need() {
  command -v "$1" >/dev/null && return
  echo "$1 is not installed"
  exit 77
}

check_units() {
  need systemd-analyze
  local unit copy executable=${1:-$(command -v true)} found=0
  for unit in deploy/systemd/*.service; do
    [[ -f $unit ]] || continue
    found=1
    # verify wants the program to exist: the installed path becomes the one that was built.
    copy=$scratch/${unit##*/}
    sed -E "s|^(Exec[A-Za-z]+=)/usr/(s?bin)/qrd|\1$executable|" "$unit" >"$copy"
    systemd-analyze verify --man=no "$copy" >"$scratch/verify" 2>&1 ||
      fail "systemd-analyze verify $unit: $(cat "$scratch/verify")"
    # Complaints about this unit only; the machine's own units are not ours to judge.
    grep -F "${unit##*/}" "$scratch/verify" && fail "systemd-analyze verify $unit has complaints"
    systemd-analyze security --offline=true --threshold=20 --no-pager "$copy" >"$scratch/score" 2>&1 ||
      fail "systemd-analyze security: $unit is above 2.0: $(tail -n 3 "$scratch/score")"
    grep -E 'Overall exposure' "$scratch/score"
  done
  ((found)) || fail "no unit in deploy/systemd"
}

check_rules() {
  need promtool
  local file
  for file in deploy/prometheus/*.rules.yaml; do
    [[ -f $file ]] || { echo "no rules in deploy/prometheus yet"; exit 77; }
    promtool check rules "$file" || fail "promtool check rules $file"
  done
  for file in tests/deploy/*.rules.test.yaml; do
    [[ -f $file ]] || continue
    promtool test rules "$file" || fail "promtool test rules $file"
  done
}

# expect STATUS TEXT COMMAND...: the command ends with that status and says that.
expect() {
  local want=$1 text=$2 output status
  shift 2
  output=$("$@" 2>&1 </dev/null)
  status=$?
  if ((status != want)); then fail "$*: status $status, want $want: $output"; fi
  grep -qF -- "$text" <<<"$output" || fail "$*: does not say '$text': $output"
}

check_scripts() {
  local script
  for script in deploy/quickstart.sh tests/run.sh tests/bench/peers.sh; do
    expect 0 "--help" bash "$script" --help
    expect 2 "unknown argument '--nonsense'" bash "$script" --nonsense
    expect 2 "--build-dir wants a value" bash "$script" --build-dir
  done
  expect 2 "'3' is not 2 or 4" bash deploy/quickstart.sh --ranks 3
  expect 2 "'two' is not 2 or 4" bash deploy/quickstart.sh --ranks two
  expect 2 "'icc' is not g++ or clang" bash tests/run.sh --compiler icc
  expect 2 "'memory' is not address, undefined" bash tests/run.sh --sanitize memory
  expect 2 "'-1' is not a number from 1 to 1024" bash tests/run.sh --jobs -1
  expect 2 "unknown set 'everything'" bash deploy/packages.sh everything
  expect 0 "libgrpc++-dev" bash deploy/packages.sh --list build

  # A system without apt-get: the tools that the check itself needs, and nothing else, are on PATH.
  mkdir "$scratch/bin"
  local tool
  for tool in bash cat comm sed sort tr wc xargs grep dirname; do
    ln -s "$(command -v "$tool")" "$scratch/bin/$tool"
  done
  expect 3 "has no apt-get" env -i PATH="$scratch/bin" bash deploy/packages.sh build
  expect 3 "libhwy-dev" env -i PATH="$scratch/bin" bash tests/run.sh

  # Debian, but a package is missing, and the user is not root and has no sudo.
  printf '#!/bin/sh\nexit 1\n' >"$scratch/bin/dpkg-query"
  printf '#!/bin/sh\nexit 1\n' >"$scratch/bin/apt-get"
  chmod +x "$scratch/bin/dpkg-query" "$scratch/bin/apt-get"
  cp deploy/packages.sh "$scratch/"
  chmod 755 "$scratch"
  local user=()
  ((EUID == 0)) && user=(setpriv --reuid=65534 --clear-groups)
  # In a root folder of mode 0700, as chroots have, another user can run nothing at all.
  "${user[@]}" true 2>/dev/null || return 0
  expect 4 "apt-get install" "${user[@]}" env -i PATH="$scratch/bin" bash "$scratch/packages.sh" build
}

# The counts of tests/run.sh: a program that is missing has failed, a test that skipped itself has not.
check_counts() {
  printf '<testcase name="a" status="%s">\n%s\n<system-out>%s</system-out>\n</testcase>\n' \
    run '' 'ok' fail '<failure message=""/>' 'no' \
    notrun '<skipped message="Unable to find executable"/>' 'Unable to find executable: a' \
    notrun '<skipped message="SKIP_RETURN_CODE=77"/>' 'needs a &lt;GPU&gt;' >"$scratch/results.xml"
  expect 1 "1 passed, 2 failed, 1 skipped" awk -f tests/junit_summary.awk "$scratch/results.xml"
  expect 1 "needs a <GPU>" awk -f tests/junit_summary.awk "$scratch/results.xml"
  expect 1 "0 passed, 0 failed" awk -f tests/junit_summary.awk /dev/null
}

# A repository that breaks each rule once: each is found.
check_breaches() {
  need git
  local repository=$scratch/repository spdx='// SPDX-License-Identifier: Apache-2.0'
  mkdir -p "$repository"/{tests/deploy,tests/data,proto/shm,kernels,daemon,client/core,client/tools}
  cp tests/deploy/repository_rules.sh "$repository/tests/deploy/"
  git -C "$repository" init -q
  cd "$repository" || exit 1
  echo notes >notes.txt
  echo 'int x;' >daemon/unlicensed.cc
  { echo "$spdx"; yes '' | head -n 500; } >kernels/long.cc
  head -c 300000 /dev/zero | tr '\0' x >client/big.txt
  printf '%s\n// see /ho''me/someone/x\n' "$spdx" >daemon/path.cc
  printf '%s\nusl''eep(5);\n' "$spdx" >tests/nap_test.cc
  printf '%s\nusl''eep(5);  // NOLINT(qrd-sleep): the pause is tested\n' "$spdx" >tests/allowed_test.cc
  printf '%s\n#include "kernels/a.h"\nvoid* p;\n' "$spdx" >proto/shm/layout.h
  printf '%s\n#include "daemon/a.h"\n' "$spdx" >kernels/up.cc
  printf '%s\n#include "client/core/a.h"\n#include <cuda_runtime.h>\n' "$spdx" >daemon/across.cc
  printf '%s\n#include "kernels/a.h"\nvoid f() { throw 1; }\n' "$spdx" >client/core/down.cc
  printf '%s\n#include "daemon/a.h"\n' "$spdx" >client/tools/tool.cc
  git add -A
  expect 1 "14 breaches" bash tests/deploy/repository_rules.sh
  cd "$top" || exit 1
}

case ${1:-} in
  units) check_units "${2:-}" ;;
  rules) check_rules ;;
  scripts) check_scripts; check_counts; check_breaches ;;
  *) sed -n '3,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
((failures == 0)) || exit 1
echo "deploy checks: $1: good"
