// EtcdMembers: the members of one store, each with a connection of its own.
//
// So each is known by its own address or name, as etcd's own clients have it: a list as one target
// of gRPC would be checked against the list. Calls go round those that are connected.
//
// Single-threaded on the executor of its EtcdKv, but for what gRPC's threads note of a handshake.
#pragma once

#include <absl/status/statusor.h>
#include <etcd/rpc.grpc.pb.h>
#include <grpcpp/channel.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "meta/etcd_calls.h"
#include "meta/etcd_kv.h"

namespace unreft::meta {

// Why the last handshake was refused by this side. Thread-safe.
class HandshakeResult {
 public:
  void Set(absl::Status status);
  absl::Status Get() const;

 private:
  mutable std::mutex mutex_;  // covers the one below
  absl::Status status_;
};

struct EtcdMember {
  std::string endpoint;
  std::shared_ptr<grpc::Channel> channel;  // shared with the stubs
  std::unique_ptr<etcdserverpb::KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  std::unique_ptr<etcdserverpb::Watch::Stub> watch;
  std::unique_ptr<etcdserverpb::Maintenance::Stub> maintenance;
  std::shared_ptr<const HandshakeResult> handshake;  // shared with the verifier

  bool connected() const { return channel->GetState(false) == GRPC_CHANNEL_READY; }
};

class EtcdMembers {
 public:
  // InvalidArgument: they are not what EtcdKvOptions says.
  static absl::Status Check(const std::string& endpoints);
  // Begins to connect to each, but for a socket file: to that one no connection is made but for a
  // call. InvalidArgument as Check. Without `certificates` there is no TLS.
  static absl::StatusOr<std::unique_ptr<EtcdMembers>> Create(
      const EtcdKvOptions& options, std::shared_ptr<TlsCertificates> certificates);

  // From now on, until Stop, a stream is kept to each of several: gRPC makes connections, and
  // notices that one is gone, only while somebody waits for something. In turns.
  void Hold(Executor& executor, CallSet& calls);
  void Stop();

  // Only one: gRPC waits until it is there.
  bool is_single() const { return members_.size() == 1; }
  // The next one to ask: the only one, or the next that is connected. Null when none is.
  EtcdMember* Next();
  // Those of several that are not connected, and why.
  std::map<std::string, std::string> Away() const;
  // Why no connection comes about, as far as that is known here.
  std::string WhyNotConnected() const;

 private:
  EtcdMembers(bool has_tls, Duration hold_again, std::string unwritten_key)
      : has_tls_(has_tls), hold_again_(hold_again), unwritten_key_(std::move(unwritten_key)) {}

  void HoldOne(size_t member);
  const char* WhyNobodyAnswers() const;

  const bool has_tls_;
  const Duration hold_again_;
  const std::string unwritten_key_;
  std::vector<EtcdMember> members_;
  size_t next_ = 0;
  Executor* executor_ = nullptr;  // these two once it holds
  CallSet* calls_ = nullptr;
  std::vector<std::shared_ptr<WatchStream>> streams_;  // by member, as gRPC's threads have them
  // Atomic only for the tasks that are destroyed with the executor.
  std::shared_ptr<std::atomic<bool>> alive_ = std::make_shared<std::atomic<bool>>(true);
};

}  // namespace unreft::meta
