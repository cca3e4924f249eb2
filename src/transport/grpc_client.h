// GrpcClient: the calls and reads that this node makes.
//
// Used in turns of the executor. An RPC ends on a thread of gRPC's, which copies what was read into
// its place and posts; it touches nothing of the client or of the caller's memory afterwards, and
// the destructor waits for that.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "transport/grpc_channels.h"
#include "transport/grpc_identity.h"

namespace unreft {

class GrpcClient {
 public:
  using Done = Transport::CallDone;

  GrpcClient(Executor& executor, const GrpcTransportOptions& options, const GrpcIdentity& identity);
  // Cancels what is in flight and waits until gRPC has let go of it.
  ~GrpcClient();
  GrpcClient(const GrpcClient&) = delete;
  GrpcClient& operator=(const GrpcClient&) = delete;

  void Call(const std::string& address, const std::string& method, std::string request,
            Duration timeout, Done done);
  TransferId Read(const std::string& address, std::string request, std::span<std::byte> into,
                  Duration timeout, Done done);
  void Cancel(TransferId transfer);
  void ReconnectNow(const std::string& address) { channels_.ReconnectNow(address); }

 private:
  class Rpc;
  struct Pending {
    std::unique_ptr<Rpc> rpc;  // used by gRPC's threads until it has ended
    GrpcChannel* channel = nullptr;
    bool is_read = false;
    Done done;
  };
  // How many RPCs gRPC's threads may still end. Thread-safe.
  class InFlight {
   public:
    void Enter();
    void Leave();
    void WaitForNone();

   private:
    std::mutex mutex_;  // covers the rest
    std::condition_variable none_;
    size_t count_ = 0;
  };

  absl::Status CheckLimits(size_t message_bytes, bool is_read) const;
  void Start(TransferId id, std::unique_ptr<Rpc> rpc, bool is_read, size_t message_bytes,
             Done done);
  void Refuse(const Rpc& rpc, const absl::Status& why, Done done);
  void End(TransferId id, absl::StatusOr<std::string> result);

  Executor& executor_;
  const GrpcTransportOptions& options_;
  GrpcChannels channels_;
  std::map<TransferId, Pending> pending_;
  size_t reads_in_flight_ = 0;
  uint64_t last_id_ = 0;
  InFlight in_flight_;
  const std::shared_ptr<GrpcClient*> self_;  // dies with the client, in a turn
};

}  // namespace unreft
