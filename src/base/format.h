// What fmt must know to print the words of Unreft's messages.
#pragma once

#include <absl/strings/string_view.h>
#include <fmt/format.h>

#include <string_view>
#include <type_traits>

// Where absl's string_view is a type of its own (it depends on how absl was built),
// Status::message() prints like any string.
template <typename T>
  requires(std::is_same_v<T, absl::string_view> && !std::is_same_v<T, std::string_view>)
struct fmt::formatter<T> : fmt::formatter<std::string_view> {
  template <typename Context>
  auto format(const T& text, Context& context) const {
    return fmt::formatter<std::string_view>::format({text.data(), text.size()}, context);
  }
};
