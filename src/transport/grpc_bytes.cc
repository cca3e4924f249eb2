#include "transport/grpc_bytes.h"

#include <fmt/format.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

namespace unreft::grpc_bytes {
namespace {

static_assert(std::endian::native == std::endian::little, "integers travel little-endian");

// Takes bytes from the front of a message, slice by slice.
class Reader {
 public:
  explicit Reader(const grpc::ByteBuffer& buffer) {
    if (buffer.Valid() && !buffer.Dump(&slices_).ok()) slices_.clear();
    for (const grpc::Slice& slice : slices_) left_ += slice.size();
  }

  size_t left() const { return left_; }

  // The next bytes of the message, which has as many left.
  void Take(std::span<std::byte> target) {
    left_ -= target.size();
    while (!target.empty()) {
      const grpc::Slice& slice = slices_[slice_];
      const size_t count = std::min(target.size(), slice.size() - at_);
      if (count > 0) std::memcpy(target.data(), slice.begin() + at_, count);
      target = target.subspan(count);
      at_ += count;
      if (at_ == slice.size()) {
        ++slice_;
        at_ = 0;
      }
    }
  }

  template <typename Integer>
  Integer TakeInteger() {
    Integer value{};
    Take(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  std::string TakeString(size_t bytes) {
    std::string text(bytes, '\0');
    Take(std::as_writable_bytes(std::span(text)));
    return text;
  }

 private:
  std::vector<grpc::Slice> slices_;
  size_t slice_ = 0;
  size_t at_ = 0;  // within the slice
  size_t left_ = 0;
};

template <typename Integer>
std::string Prefixed(Integer prefix, const std::string& text) {
  std::string bytes(sizeof(prefix) + text.size(), '\0');
  std::memcpy(bytes.data(), &prefix, sizeof(prefix));
  std::ranges::copy(text, bytes.begin() + sizeof(prefix));
  return bytes;
}

// A slice over the part, which owns a reference to what holds it.
grpc::Slice SliceOver(std::span<const std::byte> part, const std::shared_ptr<const void>& hold) {
  using Hold = std::shared_ptr<const void>;
  auto owned = std::make_unique<Hold>(hold);
  // gRPC only reads from it.
  void* const data = const_cast<std::byte*>(part.data());
  return grpc::Slice(
      data, part.size(), [](void* held) { std::unique_ptr<Hold>(static_cast<Hold*>(held)); },
      owned.release());
}

}  // namespace

grpc::ByteBuffer FromString(std::string text) {
  const grpc::Slice slice(text);
  return {&slice, 1};
}

std::string ToString(const grpc::ByteBuffer& buffer) {
  Reader reader(buffer);
  return reader.TakeString(reader.left());
}

grpc::ByteBuffer EncodeReadRequest(const std::string& request, uint64_t bytes) {
  return FromString(Prefixed(bytes, request));
}

absl::StatusOr<ReadRequest> DecodeReadRequest(const grpc::ByteBuffer& buffer) {
  Reader reader(buffer);
  if (reader.left() < sizeof(uint64_t)) {
    return absl::InvalidArgumentError(
        fmt::format("a read request of {} bytes has at least 8", reader.left()));
  }
  ReadRequest request;
  request.bytes = reader.TakeInteger<uint64_t>();
  request.request = reader.TakeString(reader.left());
  return request;
}

grpc::ByteBuffer EncodeReadReply(const ReadSource& source) {
  std::vector<grpc::Slice> slices;
  slices.reserve(source.parts.size() + 1);
  slices.emplace_back(Prefixed(static_cast<uint32_t>(source.header.size()), source.header));
  for (const std::span<const std::byte> part : source.parts) {
    if (!part.empty()) slices.push_back(SliceOver(part, source.hold));
  }
  return {slices.data(), slices.size()};
}

absl::StatusOr<std::string> DecodeReadReply(const grpc::ByteBuffer& buffer,
                                            std::span<std::byte> into) {
  Reader reader(buffer);
  if (reader.left() < sizeof(uint32_t)) return absl::DataLossError("the reply has no header");
  const auto header_bytes = reader.TakeInteger<uint32_t>();
  if (reader.left() < header_bytes) return absl::DataLossError("the reply's header is cut off");
  std::string header = reader.TakeString(header_bytes);
  if (reader.left() != into.size()) {
    return absl::DataLossError(
        fmt::format("{} bytes came for {} wanted", reader.left(), into.size()));
  }
  reader.Take(into);
  return header;
}

}  // namespace unreft::grpc_bytes
