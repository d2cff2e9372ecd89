# SPDX-License-Identifier: Apache-2.0
# Lines "LIBRARY BYTES P50_US P99_US [LIMIT_PERCENT RELAY_P50_US]" to the table, the targets and where
# qrd loses.

function median(key, column,   n, i, j, t, v) {
  n = count[key]
  for (i = 1; i <= n; i++) v[i] = value[key, i, column]
  for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
  return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
}

function human(bytes) {
  if (bytes >= 1048576) return bytes / 1048576 " MiB"
  return bytes >= 1024 ? bytes / 1024 " KiB" : bytes " B"
}

function number(x) { return sprintf(x < 100 ? "%.1f" : "%.0f", x) }

function target(text, value_, good) {
  printf "| %s | %s | %s |\n", text, value_, good ? "met" : "**missed**"
}

{
  key = $1 " " $2
  i = ++count[key]
  for (c = 3; c <= 6; c++) value[key, i, c] = $c + 0
  if (!($2 in seen)) { seen[$2] = 1; sizes[++size_count] = $2 + 0 }
}

END {
  for (i = 2; i <= size_count; i++)
    for (j = i; j > 1 && sizes[j - 1] > sizes[j]; j--) { t = sizes[j]; sizes[j] = sizes[j - 1]; sizes[j - 1] = t }
  print "| payload | Open MPI us | Gloo us | qrd us | qrd p99 us | Open MPI / qrd | Gloo / qrd | % of limit |"
  print "|---:|---:|---:|---:|---:|---:|---:|---:|"
  for (i = 1; i <= size_count; i++) {
    b = sizes[i]
    m = median("mpi " b, 3); g = median("gloo " b, 3); q = median("qrd " b, 3)
    limit = median("qrd " b, 5); relay = median("qrd " b, 6)
    mpi_ratio[b] = m / q; limit_of[b] = limit; relay_ratio[b] = relay > 0 ? q / relay : 0; relay_us[b] = relay
    printf "| %s | %s | %s | %s | %s | %.2f | %.2f | %s |\n", human(b), number(m), number(g), number(q),
      number(median("qrd " b, 4)), m / q, g / q, (limit > 0 ? sprintf("%.0f", limit) : "-")
    if (q > m) loses = loses (loses == "" ? "" : ", ") human(b) " to Open MPI (" sprintf("%.1f", q / m) "x its time)"
    if (q > g) loses = loses (loses == "" ? "" : ", ") human(b) " to Gloo (" sprintf("%.1f", q / g) "x its time)"
  }
  print "\n| target | measured | |\n|---|---:|---|"
  for (i = 1; i <= size_count; i++) {
    b = sizes[i]
    if (b == 4096) target("4 KiB: at most 1.5x a futex relay of three processes (" number(relay_us[b]) " us)",
                          sprintf("%.2fx", relay_ratio[b]), relay_ratio[b] > 0 && relay_ratio[b] <= 1.5)
    if (b == 1048576) target("1 MiB: at least 3x Open MPI", sprintf("%.2fx", mpi_ratio[b]), mpi_ratio[b] >= 3)
    if (b == 67108864) target("64 MiB: at least 5x Open MPI", sprintf("%.2fx", mpi_ratio[b]), mpi_ratio[b] >= 5)
    if (b >= 4194304) target(human(b) ": at least 80 % of the limit", sprintf("%.0f %%", limit_of[b]), limit_of[b] >= 80)
  }
  print "\nWhere qrd loses: " (loses == "" ? "nowhere in this table" : loses) "."
}
