// SPDX-License-Identifier: Apache-2.0
// A precompiled header belongs to a target, and a target has a source.
int main() { return 0; }
