#include "transport/grpc_status.h"

#include <string>

namespace unreft::grpc_status {
namespace {

constexpr size_t kMessageBytesMax = 2048;  // percent-encoded it may be three times as long

// What gRPC itself says of an RPC, in the words of Transport. Whatever breaks a stream is a broken
// connection to the caller, also a server that cancels what it has when it goes.
absl::StatusCode CodeOfGrpcItself(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return static_cast<absl::StatusCode>(code);
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()),
          std::string(status.message().substr(0, kMessageBytesMax))};
}

absl::Status FromGrpc(const grpc::Status& status, bool answered) {
  if (status.ok()) return absl::OkStatus();
  const auto code = answered ? static_cast<absl::StatusCode>(status.error_code())
                             : CodeOfGrpcItself(status.error_code());
  return {code, status.error_message()};
}

}  // namespace unreft::grpc_status
