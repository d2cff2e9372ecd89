// SPDX-License-Identifier: Apache-2.0
// Whether two function types can stand for each other in a call: for libqrd's own declarations of a
// vendor's functions, whose handles are void* and whose enums are int.
#pragma once

#include <cstddef>
#include <type_traits>

namespace qrd::testing {

template <typename A, typename B>
constexpr bool SameArgument() {
  if constexpr (std::is_pointer_v<A> || std::is_pointer_v<B>) {
    if constexpr (!std::is_pointer_v<A> || !std::is_pointer_v<B>) {
      return false;
    } else {
      // void* stands for any handle; else what is pointed to must be alike.
      using PointedA = std::remove_cv_t<std::remove_pointer_t<A>>;
      using PointedB = std::remove_cv_t<std::remove_pointer_t<B>>;
      if constexpr (std::is_void_v<PointedA> || std::is_void_v<PointedB>) {
        return true;
      } else {
        return SameArgument<PointedA, PointedB>();
      }
    }
  } else if constexpr (std::is_class_v<A> || std::is_union_v<A>) {
    return sizeof(A) == sizeof(B) &&
           (std::is_class_v<B> || std::is_union_v<B>)&&std::is_trivially_copyable_v<A> &&
           std::is_trivially_copyable_v<B>;
  } else {
    return sizeof(A) == sizeof(B) && alignof(A) == alignof(B) &&
           (std::is_integral_v<A> || std::is_enum_v<A>)&&(std::is_integral_v<B> ||
                                                          std::is_enum_v<B>);
  }
}

template <typename Ours, typename Theirs>
struct SameAbi : std::false_type {};
template <typename R1, typename... A1, typename R2, typename... A2>
struct SameAbi<R1 (*)(A1...), R2 (*)(A2...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A1) != sizeof...(A2)) {
      return false;
    } else {
      return SameArgument<R1, R2>() && (SameArgument<A1, A2>() && ...);
    }
  }();
};

static_assert(SameAbi<int (*)(void*, int), int (*)(const char*, unsigned)>::value);
static_assert(!SameAbi<int (*)(void*), int (*)(void*, int)>::value);
static_assert(!SameAbi<int (*)(int), int (*)(long long)>::value);
static_assert(!SameAbi<int (*)(int*), int (*)(long long*)>::value);
static_assert(!SameAbi<int (*)(int), int (*)(void*)>::value);

}  // namespace qrd::testing
