// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/library.h"

#include <dlfcn.h>

namespace qrd::client::gpu {

bool Library::Open(const std::string& name, std::string* why) {
  // RTLD_NODELETE: threads of the library may run until the process ends.
  handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle_ == nullptr) {
    const char* text = dlerror();
    *why = text != nullptr ? text : name + ": dlopen failed";
    return false;
  }
  name_ = name;
  return true;
}

bool Library::OpenLoaded(const char* name) {
  handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle_ == nullptr) {
    dlerror();  // not the caller's next error
    return false;
  }
  name_ = name;
  return true;
}

void* Library::Find(const char* symbol) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, symbol);
}

}  // namespace qrd::client::gpu
