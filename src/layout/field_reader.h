// FieldReader: the fields of a protobuf message in place, without protobuf, as it writes them: in
// the order of their numbers, and none of a number that is 0.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace unreft::layout {

// To be asked for the fields in the order of their numbers. One that is not next is left as it is;
// false is for bytes that are no such field. What is at_end after the last one had no others.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool at_end() const { return at_ == end_; }

  bool Number(uint32_t field, uint64_t& value) { return !Skip(field << 3) || Varint(value); }
  bool Number(uint32_t field, uint32_t& value) {
    uint64_t wide = value;
    if (!Number(field, wide) || wide > std::numeric_limits<uint32_t>::max()) return false;
    value = static_cast<uint32_t>(wide);
    return true;
  }
  // Text or another message.
  bool Bytes(uint32_t field, std::string_view& bytes) {
    return !Skip(field << 3 | 2) || LengthAndBytes(bytes);
  }
  bool HasBytes(uint32_t field) const { return TagBytes(field << 3 | 2) > 0; }
  // Packed ones, appended to `numbers`.
  bool Numbers(uint32_t field, std::vector<uint64_t>& numbers) {
    std::string_view bytes;
    if (!Bytes(field, bytes)) return false;
    for (FieldReader in(bytes); !in.at_end();) {
      if (!in.Varint(numbers.emplace_back())) return false;
    }
    return true;
  }

 private:
  // Of a field whose tag is next; 0 of another.
  size_t TagBytes(uint32_t tag) const {
    const auto byte = [this](size_t i) { return static_cast<uint8_t>(at_[i]); };
    if (tag < 0x80) return end_ - at_ >= 1 && byte(0) == tag ? 1 : 0;
    return end_ - at_ >= 2 && byte(0) == ((tag & 0x7f) | 0x80) && byte(1) == tag >> 7 ? 2 : 0;
  }
  bool Skip(uint32_t tag) {
    const size_t bytes = TagBytes(tag);
    at_ += bytes;
    return bytes > 0;
  }
  bool Varint(uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && at_ != end_; shift += 7) {
      const auto byte = static_cast<uint8_t>(*at_++);
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return shift < 63 || byte <= 1;
    }
    return false;
  }
  bool LengthAndBytes(std::string_view& bytes) {
    uint64_t size = 0;
    if (!Varint(size) || size > static_cast<uint64_t>(end_ - at_)) return false;
    bytes = {at_, static_cast<size_t>(size)};
    at_ += size;
    return true;
  }

  const char* at_;
  const char* end_;
};

}  // namespace unreft::layout
