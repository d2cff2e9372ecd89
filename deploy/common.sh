# SPDX-License-Identifier: Apache-2.0
# What deploy/quickstart.sh, tests/run.sh, tests/bench/peers.sh and .ci/run share: saying things, and
# configuring and building with progress. Sourced by bash, changes nothing when sourced.
# shellcheck shell=bash

qrd_say() { printf '\n== %s\n' "$*"; }

qrd_die() {  # status, text
  printf '%s: %s\n' "${0##*/}" "$2" >&2
  exit "$1"
}

# The value of an option, or a clear end: qrd_value --jobs "$@" where $1 is the option's own word.
qrd_value() {
  if (($# < 2)) || [[ ! $2 ]]; then qrd_die 2 "$1 wants a value; try --help"; fi
  printf '%s' "$2"
}

# qrd_check_number NAME VALUE MIN MAX
qrd_check_number() {
  if [[ ! $2 =~ ^[0-9]{1,9}$ ]] || ((10#$2 < $3 || 10#$2 > $4)); then
    qrd_die 2 "$1: '$2' is not a number from $3 to $4"
  fi
}

# Parallel compilations: one a core, but 1.5 GiB of memory for each (gRPC headers are large).
qrd_jobs() {
  local cores memory_kib limit jobs
  cores=$(nproc)
  memory_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [[ $limit =~ ^[0-9]+$ ]] && ((limit / 1024 < memory_kib)); then memory_kib=$((limit / 1024)); fi
  jobs=$((memory_kib / 1572864))
  if ((jobs < 1)); then jobs=1; fi
  echo $((jobs < cores ? jobs : cores))
}

# Flags of RelWithDebInfo for tests: line numbers in traces are enough, and a fifth faster to build than -g.
# shellcheck disable=SC2034  # for those that source this
qrd_test_flags='-O2 -g1 -DNDEBUG'

# qrd_configure SOURCE BUILD [CMAKE-ARGUMENT...]: quiet unless it fails.
qrd_configure() {
  local source=$1 build=$2 launcher=()
  shift 2
  mkdir -p "$build" || qrd_die 1 "cannot create the build folder $build"
  if command -v ccache >/dev/null; then
    export CCACHE_BASEDIR=$source CCACHE_NOHASHDIR=1
    launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  if ! cmake -S "$source" -B "$build" -G Ninja "${launcher[@]}" "$@" >"$build/configure.log" 2>&1; then
    tail -n 40 "$build/configure.log" >&2
    echo "configure failed; all of its output: $build/configure.log" >&2
    return 1
  fi
}

# qrd_build BUILD JOBS [TARGET...]: on a terminal ninja's own line, else a line every tenth of the way.
qrd_build() {
  local build=$1 jobs=$2 status
  shift 2
  if [[ -t 1 ]]; then
    ninja -C "$build" -j "$jobs" "$@"
    return
  fi
  NINJA_STATUS='[%f/%t] ' ninja -C "$build" -j "$jobs" "$@" 2>&1 | qrd_thin_progress
  status=${PIPESTATUS[0]}
  return "$status"
}

qrd_thin_progress() {
  local line tenth last=-1
  while IFS= read -r line; do
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\  ]]; then
      tenth=$((BASH_REMATCH[1] * 10 / BASH_REMATCH[2]))
      ((tenth == last)) && continue
      last=$tenth
    fi
    printf '%s\n' "$line"
  done
}

# qrd_daemon_start FOLDER [FLAG...]: a daemon of its own below FOLDER, ready when this returns 0. Sets
# qrd_daemon_pid and exports QRD_RUNTIME_DIRECTORY, by which qrctl, qrbench and libqrd find it.
# Programs are looked for on PATH. At most 10 s.
qrd_daemon_start() {
  local folder=$1 tries
  shift
  export QRD_RUNTIME_DIRECTORY=$folder/run
  env -u NOTIFY_SOCKET -u WATCHDOG_USEC qrd --runtime-directory "$folder/run" \
    --state-directory "$folder/state" --metrics-address 127.0.0.1:0 "$@" \
    >"$folder/qrd.log" 2>&1 </dev/null &
  qrd_daemon_pid=$!
  for ((tries = 0; tries < 100; tries++)); do
    qrctl status >/dev/null 2>&1 && return 0
    kill -0 "$qrd_daemon_pid" 2>/dev/null || break
    sleep 0.1
  done
  echo "the daemon did not become ready; the end of its log:" >&2
  tail -n 15 "$folder/qrd.log" >&2
  return 1
}

# Stops it and waits: SIGTERM drains, SIGKILL after 15 s. Returns the daemon's exit status.
qrd_daemon_stop() {
  local pid=${qrd_daemon_pid:-} tries
  qrd_daemon_pid=''
  [[ $pid ]] || return 0
  kill "$pid" 2>/dev/null
  for ((tries = 0; tries < 150; tries++)); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null
  wait "$pid" 2>/dev/null
}

# qrd_http_get HOST:PORT PATH: the body; needs no program but bash.
qrd_http_get() {
  local host=${1%:*} port=${1##*:} line
  exec 3<>"/dev/tcp/$host/$port" || return 1
  printf 'GET %s HTTP/1.0\r\nHost: %s\r\n\r\n' "$2" "$host" >&3
  while IFS= read -r -t 10 line <&3 && [[ $line != $'\r' ]]; do :; done
  timeout 10 cat <&3
  exec 3>&-
}
