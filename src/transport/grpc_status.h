// Statuses between absl and gRPC, which have the same codes.
#pragma once

#include <absl/status/status.h>
#include <grpcpp/support/status.h>

namespace unreft::grpc_status {

// In the trailing metadata of a status that the peer's transport or handler chose; one without it
// comes from gRPC: the connection, the deadline.
inline constexpr char kAnsweredKey[] = "unreft-answered";
// In the metadata of a request; may be any bytes.
inline constexpr char kJobKey[] = "unreft-job-bin";

// The message is cut where gRPC's limit on metadata would refuse it.
grpc::Status ToGrpc(const absl::Status& status);

// `answered`: the peer chose it.
absl::Status FromGrpc(const grpc::Status& status, bool answered);

}  // namespace unreft::grpc_status
