// Requests and replies between nodes as gRPC brings them: bytes in any number of slices.
//
// The first byte is how large the slices are, the second how many bytes a reader wants.
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "transport/grpc_bytes.h"

namespace unreft::fuzz {
namespace {

std::string Input(uint8_t slice, uint8_t wanted, const grpc::ByteBuffer& buffer) {
  return std::string{static_cast<char>(slice), static_cast<char>(wanted)} +
         grpc_bytes::ToString(buffer);
}

grpc::ByteBuffer BufferOf(std::string_view bytes, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, slice_bytes);
    slices.emplace_back(std::string(part));
    bytes.remove_prefix(part.size());
  }
  return {slices.data(), slices.size()};
}

void UseRequest(const grpc::ByteBuffer& buffer, std::string_view bytes) {
  const auto request = grpc_bytes::DecodeReadRequest(buffer);
  UNREFT_CHECK(request.ok() == (bytes.size() >= sizeof(uint64_t)));
  if (!request.ok()) return;
  const auto again = grpc_bytes::EncodeReadRequest(request->request, request->bytes);
  UNREFT_CHECK(grpc_bytes::ToString(again) == bytes);
}

void UseReply(const grpc::ByteBuffer& buffer, std::string_view bytes, size_t wanted) {
  std::vector<std::byte> into(wanted);
  auto header = grpc_bytes::DecodeReadReply(buffer, into);
  if (!header.ok()) return;
  ReadSource source;
  source.header = *std::move(header);
  source.parts.emplace_back(into);
  UNREFT_CHECK(grpc_bytes::ToString(grpc_bytes::EncodeReadReply(source)) == bytes);
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::vector<std::byte> block(64, std::byte{7});
  ReadSource source;
  source.header = "header";
  source.parts.emplace_back(block);
  const auto request = grpc_bytes::EncodeReadRequest("request", 64);
  const auto reply = grpc_bytes::EncodeReadReply(source);
  return {Input(0, 64, request), Input(3, 64, request), Input(0, 64, reply), Input(7, 64, reply)};
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  if (size < 2) return 0;
  const std::string_view bytes = fuzz::Bytes(data + 2, size - 2);
  const auto buffer = fuzz::BufferOf(bytes, data[0] == 0 ? SIZE_MAX : data[0]);
  UNREFT_CHECK(unreft::grpc_bytes::ToString(buffer) == bytes);
  fuzz::UseRequest(buffer, bytes);
  fuzz::UseReply(buffer, bytes, data[1]);
  return 0;
}
