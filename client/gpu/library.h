// SPDX-License-Identifier: Apache-2.0
// A shared library that is loaded at run time and stays.
//
// Thread safety: as dlopen and dlsym. Ownership: never closed.
#pragma once

#include <string>

namespace qrd::client::gpu {

class Library {
 public:
  // False, and dlerror's text in *why, if it cannot be loaded.
  bool Open(const std::string& name, std::string* why);
  // Only if the process has it loaded already; nothing is loaded.
  bool OpenLoaded(const char* name);

  // nullptr if it is not there.
  void* Find(const char* symbol) const;
  // Function must be a pointer to a function.
  template <typename Function>
  Function FindFunction(const char* symbol) const {
    return reinterpret_cast<Function>(Find(symbol));
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace qrd::client::gpu
