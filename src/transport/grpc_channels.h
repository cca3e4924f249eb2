// GrpcChannels: one connection per address, as many as are in use.
//
// Used in turns of the transport's executor.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/generic/generic_stub.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "transport/grpc_identity.h"

namespace unreft {

struct GrpcChannel {
  explicit GrpcChannel(std::shared_ptr<grpc::Channel> to) : channel(std::move(to)), stub(channel) {}

  const std::shared_ptr<grpc::Channel> channel;  // shared with the stub
  grpc::GenericStub stub;
  std::shared_ptr<ServerRefusal> refusal;  // shared with the verifier of its credentials
  size_t rpcs = 0;                         // in flight
  Time last_use;
};

class GrpcChannels {
 public:
  GrpcChannels(const GrpcTransportOptions& options, const GrpcIdentity& identity)
      : options_(options), identity_(identity) {}

  // The channel to that address, with one RPC more. It is the user's until Release. Drops what was
  // idle for too long. ResourceExhausted when all of channels_max are in use; PermissionDenied when
  // others could be the peer, Unavailable when its socket's directory is gone.
  absl::StatusOr<GrpcChannel*> Acquire(const std::string& address, Time now);
  void Release(GrpcChannel& channel, Time now);
  // Forgets how often it was in vain to connect there.
  void ReconnectNow(const std::string& address);

 private:
  absl::Status CheckPeer(const std::string& address) const;
  std::unique_ptr<GrpcChannel> Connect(const std::string& address) const;
  void DropIdle(Time now);
  bool DropOldestIdle();

  const GrpcTransportOptions& options_;
  const GrpcIdentity& identity_;
  std::map<std::string, std::unique_ptr<GrpcChannel>> channels_;  // by address
};

}  // namespace unreft
