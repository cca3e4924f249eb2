// What travels in gRPC's messages. No .proto: requests and replies are the caller's bytes.
//
//   call      request                          reply
//   read      bytes wanted (u64 LE), request   header length (u32 LE), header, bytes
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <span>
#include <string>

#include "transport/transport.h"

namespace unreft::grpc_bytes {

grpc::ByteBuffer FromString(std::string text);
// Empty when there is none.
std::string ToString(const grpc::ByteBuffer& buffer);

grpc::ByteBuffer EncodeReadRequest(const std::string& request, uint64_t bytes);

struct ReadRequest {
  std::string request;
  uint64_t bytes = 0;
};
// InvalidArgument when it is no read request.
absl::StatusOr<ReadRequest> DecodeReadRequest(const grpc::ByteBuffer& buffer);

// Copies the header only: the parts stay where they are, and their hold lives until gRPC has let go
// of the last of them.
grpc::ByteBuffer EncodeReadReply(const ReadSource& source);

// Copies the bytes into place and returns the header. DataLoss when they are more or fewer.
absl::StatusOr<std::string> DecodeReadReply(const grpc::ByteBuffer& buffer,
                                            std::span<std::byte> into);

// How much a message of a read may be larger than the bytes of the read.
inline constexpr size_t kOverheadBytesMax = size_t{1} << 20;

}  // namespace unreft::grpc_bytes
