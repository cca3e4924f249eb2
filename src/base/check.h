// UNREFT_CHECK: a broken invariant ends the process, in production too.
//
// For what only a bug of ours can cause. What the world can cause is an absl::Status.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace unreft::internal {

// Prints the place, the condition and the message to stderr, then aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

inline std::string CheckMessage() { return {}; }

template <typename... Args>
std::string CheckMessage(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}

}  // namespace unreft::internal

// UNREFT_CHECK(condition) or UNREFT_CHECK(condition, "slot {} of {}", slot, count).
#define UNREFT_CHECK(condition, ...)                                                  \
  do {                                                                                \
    if (!(condition)) [[unlikely]] {                                                  \
      ::unreft::internal::CheckFailed(__FILE__, __LINE__, #condition,                 \
                                      ::unreft::internal::CheckMessage(__VA_ARGS__)); \
    }                                                                                 \
  } while (false)
