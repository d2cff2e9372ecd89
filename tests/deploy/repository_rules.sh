#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rules about the repository that no compiler checks. Prints each breach as file:line and the rule.
#
#   tests/deploy/repository_rules.sh        exit status 0: no breach, 1: breaches
#
# A line that must break the rule about sleeping says why: "// NOLINT(qrd-sleep): reason".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
breaches=0

# Tracked files under the given paths. safe.directory: CI may run as another user than the owner.
files() { git -c safe.directory='*' ls-files -- "$@"; }

breach() {  # rule, lines
  [[ $2 ]] || return 0
  breaches=$((breaches + $(wc -l <<<"$2")))
  printf 'rule: %s\n' "$1"
  printf '  %s\n' "${2//$'\n'/$'\n'  }"
}

# search PATTERN PATH...: file:line:text of tracked text files.
search() {
  local pattern=$1
  shift
  files "$@" | xargs -r -d '\n' grep -nHIE -- "$pattern"
}

top_level() {
  files | cut -d/ -f1 | sort -u |
    grep -vxE '\..*|CMakeLists\.txt|daemon|proto|client|kernels|deploy|tests|README\.md'
}

without_spdx() {
  local file
  files '*.cc' '*.h' '*.hpp' '*.c' '*.def' '*.in' '*.py' '*.sh' '*.cmake' '*CMakeLists.txt' '*.proto' '*.map' \
    '*.service' '*.socket' '*.conf' '*.supp' '*.yaml' '*.yml' '*Dockerfile' '.ci/*' |
    while IFS= read -r file; do
      head -n 4 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "$file"
    done
}

too_long() {
  files '*.cc' '*.h' '*.hpp' '*.c' '*.def' '*.py' '*.sh' '*.cmake' '*CMakeLists.txt' '*.proto' '.ci/*' |
    xargs -r -d '\n' wc -l | awk '$2 != "total" && $1 > 500 { print $2 ": " $1 " lines" }'
}

commits_of_binaries() {
  files | grep -v '^tests/data/' | while IFS= read -r file; do
    if [[ -f $file ]] && (($(stat -c %s "$file") > 262144)); then echo "$file"; fi
  done
}

breach "the top level has exactly eight names and dotfiles" "$(top_level)"
breach "the first lines name the licence: SPDX-License-Identifier: Apache-2.0" "$(without_spdx)"
breach "a source file has at most 500 lines" "$(too_long)"
breach "files above 256 KiB live in tests/data only" "$(commits_of_binaries)"
breach "no path of one machine" \
  "$(search '(^|[^A-Za-z0-9_.])/(wor[k]|far[m]|roo[t]|home/[a-z]+)/' . ':!tests/data/**/*.npy')"
breach "tests wait for conditions, they do not sleep" \
  "$(search '\b(u?sleep|nanosleep|sleep_for|sleep_until|SleepFor)[[:space:]]*\(|^[[:space:]]*sleep ' \
    tests ':!*.md' ':!tests/bench' | grep -v 'NOLINT(qrd-sleep): .')"

# proto <- kernels <- daemon, proto <- client/core <- client. The tools may use the codecs of kernels.
breach "proto includes no other room" "$(search '#include "(kernels|daemon|client)/' proto)"
breach "kernels includes proto/shm only: no daemon, client, sockets or messages" \
  "$(search '#include ["<](daemon/|client/|qrd/|grpc|google/protobuf|sys/socket)' kernels)"
breach "the daemon never includes the client" "$(search '#include ["<](client/|qrd/qrd\.)' daemon)"
breach "libqrd includes proto and client only" \
  "$(search '#include "(kernels|daemon)/' client/core client/src client/include)"
breach "client/core does not include the layers above it" \
  "$(search '#include "client/(src|tools)/' client/core)"
breach "the tools never include the daemon" "$(search '#include "daemon/' client/tools)"
# The two tests compare libqrd's own declarations with the vendors' where these are installed.
breach "GPU headers stay below kernels/backend.h" \
  "$(search '#include ["<](hip/|cuda|hipblas|rccl|nccl)' . ':!kernels/gpu*' ':!tests/deploy' \
    ':!tests/client/gpu/*_api_test.cc')"
breach "no addresses in shared memory" "$(search '\b(u?intptr_t|void ?\*|char ?\*)' proto/shm/layout.h)"
breach "no conflict markers" "$(search '^(<<<<<<<|>>>>>>>)( |$)' .)"
breach "no exceptions of our own (passing one on is fine)" \
  "$(search '^[^/"]*\bthrow +[^;]' kernels daemon client/core client/src)"

if ((breaches)); then
  echo "$breaches breaches"
  exit 1
fi
echo "repository rules: $(files | wc -l) files, no breach"
