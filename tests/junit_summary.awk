# SPDX-License-Identifier: Apache-2.0
# Reads the JUnit XML of ctest; prints the tests that did not run, by reason, and a last line with the
# counts. Exit status 1 if a test failed or none passed.
#
# A test whose program is missing is "notrun" for ctest, as one that skipped itself; here it failed.

function attribute(name) {
  if (!match($0, name "=\"[^\"]*\"")) return ""
  return substr($0, RSTART + length(name) + 2, RLENGTH - length(name) - 3)
}

function plain(text) {
  gsub(/&lt;/, "<", text)
  gsub(/&gt;/, ">", text)
  gsub(/&quot;/, "\"", text)
  gsub(/&amp;/, "\\&", text)
  return text
}

/<testcase / {
  name = attribute("name")
  status = attribute("status")
  reason = status == "disabled" ? "disabled in its source" : ""
  by_choice = status == "disabled"
}
/<skipped / { by_choice = attribute("message") ~ /^SKIP_|^Disabled/ }

# GoogleTest says "file:line: Skipped" and the reason on the next line; a script says it first.
after_mark { reason = plain($0); after_mark = 0 }
/^[^ ]+:[0-9]+: Skipped$/ { after_mark = 1 }
/<system-out>/ {
  sub(/.*<system-out>/, "")
  if (reason == "" && $0 !~ /^Running main/) reason = plain($0)
}

/<\/testcase>/ {
  if (status == "run") {
    passed++
  } else if (by_choice) {
    skipped++
    if (reason == "") reason = "no reason given"
    if (!(reason in names)) reasons[++reason_count] = reason
    names[reason] = names[reason] "\n    " name
  } else {
    failed++
  }
}

END {
  if (skipped) print "\nSkipped, and why:"
  for (i = 1; i <= reason_count; i++) print "  " reasons[i] names[reasons[i]]
  printf "\n%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : ""
  exit failed > 0 || passed == 0
}
