// Little-endian encoding of plain structs, for the frames of the local session.
//
// A message lists its fields once, in order:
//
//   struct Skipped {
//     Step step;
//     std::string reason;
//     void Fields(auto& wire) { wire(step, WireText{reason}); }
//   };
//
// Integers and enums take their own width, bools one byte, strings and vectors a u32 count and
// their elements. Decoding checks every length against the bytes that are left, so no input makes
// it read past the end or allocate more than the input could fill, and every step and timeline
// against its bound. A later format may append fields
// to a message that travels alone (never to one within a vector): what follows the last known field
// is skipped, and a field that was appended is listed apart, by `wire.Appended(field)`: a message
// of an earlier release may end before it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/bounds.h"
#include "base/ids.h"
#include "base/text.h"

namespace unreft {

static_assert(std::endian::native == std::endian::little);

// A string that people read: it is clean when it has been decoded.
struct WireText {
  std::string& text;
};

class WireWriter {
 public:
  template <typename... Fields>
  void operator()(Fields&&... fields) {
    (Put(fields), ...);
  }
  template <typename... Fields>
  void Appended(Fields&... fields) {
    (Put(fields), ...);
  }
  std::string Take() { return std::move(out_); }

 private:
  template <typename T>
  void Put(T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    } else {
      value.Fields(*this);
    }
  }
  template <typename Tag>
  void Put(Id<Tag>& id) {
    Put(id.value);
  }
  void Put(std::string& text) {
    PutCount(text.size());
    out_ += text;
  }
  void Put(WireText field) { Put(field.text); }
  template <typename T>
  void Put(std::vector<T>& items) {
    PutCount(items.size());
    for (T& item : items) Put(item);
  }
  void PutCount(size_t count) {
    auto narrow = static_cast<uint32_t>(count);
    Put(narrow);
  }

  std::string out_;
};

class WireReader {
 public:
  explicit WireReader(std::string_view in) : in_(in) {}

  template <typename... Fields>
  void operator()(Fields&&... fields) {
    (Get(fields), ...);
  }
  // Fields that a message of an earlier release ends before: they stay as they are.
  template <typename... Fields>
  void Appended(Fields&... fields) {
    if (bytes_left() > 0) (Get(fields), ...);
  }
  // Whether every field was there, and within its bound.
  bool ok() const { return ok_; }
  // Of the field that was not within it; empty when one was not there.
  const std::string& out_of_bounds() const { return out_of_bounds_; }
  size_t bytes_left() const { return in_.size(); }

 private:
  template <typename T>
  void Get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      Get(byte);
      value = byte != 0;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      if (std::string_view bytes = Take(sizeof(value)); ok_) {
        bytes.copy(reinterpret_cast<char*>(&value), sizeof(value));
      }
    } else {
      value.Fields(*this);
    }
  }
  template <typename Tag>
  void Get(Id<Tag>& id) {
    Get(id.value);
  }
  void Get(Step& step) { GetBounded("step", step.value, kStepMax); }
  void Get(Timeline& timeline) { GetBounded("timeline", timeline.value, kTimelineMax); }
  void GetBounded(std::string_view name, uint64_t& number, uint64_t most) {
    Get(number);
    if (!ok_ || number <= most) return;
    ok_ = false;
    out_of_bounds_ = fmt::format("{} {}, the largest is {}", name, number, most);
  }
  void Get(std::string& text) {
    uint32_t count = 0;
    Get(count);
    text = Take(count);
  }
  void Get(WireText field) {
    Get(field.text);
    field.text = CleanText(field.text, kTextBytesMax);
  }
  template <typename T>
  void Get(std::vector<T>& items) {
    uint32_t count = 0;
    Get(count);
    items.clear();
    for (uint32_t i = 0; i < count && ok_; ++i) Get(items.emplace_back());
  }
  std::string_view Take(size_t bytes) {
    if (!ok_ || in_.size() < bytes) {
      ok_ = false;
      return {};
    }
    std::string_view taken = in_.substr(0, bytes);
    in_.remove_prefix(bytes);
    return taken;
  }

  std::string_view in_;
  bool ok_ = true;
  std::string out_of_bounds_;
};

template <typename Message>
std::string EncodeWire(Message message) {
  WireWriter writer;
  message.Fields(writer);
  return writer.Take();
}

// InvalidArgument, naming `what`, unless `bytes` begins with all fields of one message.
template <typename Message>
absl::StatusOr<Message> DecodeWire(std::string_view bytes, std::string_view what) {
  Message message;
  WireReader reader(bytes);
  message.Fields(reader);
  if (!reader.out_of_bounds().empty()) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", what, reader.out_of_bounds()));
  }
  if (!reader.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: its fields need more bytes than the {} found", what, bytes.size()));
  }
  return message;
}

}  // namespace unreft
