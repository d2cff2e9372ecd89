#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Debian packages that qrd needs, in one place. Installs those that are missing, nothing else.
#
#   deploy/packages.sh [--list | --missing] SET...
#
# Sets: build   compile qrd and its tools
#       test    compile and run the tests (includes build)
#       clang   the other compiler, with its sanitizers
#       bench   the other libraries that tests/bench/peers.sh compares with (includes build)
#       ci      what .ci/run needs beyond that (includes test and clang)
# --list     print the packages of the sets and stop
# --missing  print those that are not installed and stop
#
# Exit status: 0 all there, 2 bad arguments, 3 not a Debian-like system, 4 no right to install,
# 5 the installation failed. Scripts source this file and call qrd_packages_install SET...

qrd_packages_list() {
  local set
  for set in "$@"; do
    case $set in
      build)
        echo g++ cmake ninja-build pkg-config protobuf-compiler protobuf-compiler-grpc \
          libgrpc++-dev libprotobuf-dev libabsl-dev prometheus-cpp-dev libspdlog-dev libhwy-dev \
          libsystemd-dev libcli11-dev nlohmann-json3-dev ;;
      # prometheus is there for promtool and for the test in which a real server scrapes the daemon.
      test) qrd_packages_list build; echo libgtest-dev libgmock-dev libbenchmark-dev prometheus ;;
      bench) qrd_packages_list build; echo libbenchmark-dev openmpi-bin libopenmpi-dev libgloo-dev ;;
      # llvm is there for the symbolizer.
      clang) echo clang libclang-rt-dev llvm ;;
      # systemd is there for systemd-analyze.
      ci) qrd_packages_list test clang; echo git ccache clang-format shellcheck systemd \
        hipcc libamdhip64-dev ;;
      *) echo "packages.sh: unknown set '$set': want build, test, clang, bench or ci" >&2; return 2 ;;
    esac
  done
}

# One package a line, sorted.
qrd_packages_missing() {
  local wanted
  wanted=$(set -o pipefail; qrd_packages_list "$@" | tr ' ' '\n' | sort -u) || return 2
  # dpkg-query says nothing, or "not-installed", about a package that is not there.
  # shellcheck disable=SC2016  # dpkg-query expands these
  comm -23 <(echo "$wanted") <(xargs dpkg-query -W -f '${db:Status-Status} ${Package}\n' \
    <<<"$wanted" 2>/dev/null | sed -n 's/^installed //p' | sort -u)
}

# Fails with 3 and says what this system is and what to install by hand.
qrd_packages_require_debian() {
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null && return 0
  local name="an unknown system"
  # shellcheck disable=SC1091
  [[ -r /etc/os-release ]] && name=$(. /etc/os-release && echo "${PRETTY_NAME:-${ID:-$name}}")
  {
    echo "qrd: this is $name, which has no apt-get: cannot install what qrd needs."
    echo "qrd: written and tested for Debian 12. Elsewhere install the counterparts of these by hand"
    echo "qrd: and pass --no-install:"
    qrd_packages_list "$@" | tr ' ' '\n' | sort -u | sed 's/^/qrd:   /'
  } >&2
  return 3
}

# Fails with 4 unless packages can be installed; prints the prefix for privileged commands.
qrd_packages_privilege() {
  if ((EUID == 0)); then return 0; fi
  if command -v sudo >/dev/null; then
    if sudo -n true 2>/dev/null; then echo "sudo -n"; return 0; fi
    if [[ -t 0 ]]; then echo sudo; return 0; fi
  fi
  echo "qrd: not root, and no sudo without a password: cannot install packages. Run this as root:" >&2
  echo "qrd:   apt-get install $*" >&2
  return 4
}

qrd_packages_install() {
  qrd_packages_require_debian "$@" || return
  local missing privilege had_prometheus=1
  missing=$(qrd_packages_missing "$@") || return
  [[ $missing ]] || return 0
  # shellcheck disable=SC2086
  privilege=$(qrd_packages_privilege $missing) || return
  grep -qx prometheus <<<"$missing" && had_prometheus=0
  echo "qrd: installing $(wc -w <<<"$missing") packages: $(tr '\n' ' ' <<<"$missing")"
  local apt="$privilege env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0"
  local log
  log=$(mktemp)
  if ! $apt update >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "qrd: apt-get update failed; trying to install with the package lists that are here" >&2
  fi
  # shellcheck disable=SC2086
  if ! $apt install -y --no-install-recommends $missing >"$log" 2>&1 </dev/null; then
    tail -n 25 "$log" >&2
    rm -f "$log"
    echo "qrd: apt-get install failed (above: the end of its output)" >&2
    return 5
  fi
  rm -f "$log"
  # The tests want the program only; Debian's package also starts it as a service.
  if ((!had_prometheus)) && [[ -d /run/systemd/system ]]; then
    $privilege systemctl -q disable --now prometheus.service || true
  fi
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -uo pipefail
  case ${1:-} in
    --list) shift; qrd_packages_list "$@" | tr ' ' '\n' | sort -u ;;
    --missing) shift; qrd_packages_require_debian "$@" && qrd_packages_missing "$@" ;;
    -h | --help | '') sed -n '3,17s/^# \{0,1\}//p' "$0"; [[ ${1:-} ]] || exit 2 ;;
    *) qrd_packages_install "$@" ;;
  esac
fi
