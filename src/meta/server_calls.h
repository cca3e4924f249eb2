// The calls that the embedded server is in, so that it can end them all.
//
// A call is begun on a thread of gRPC and from then on touched in turns of the engine's executor
// alone, or by the server's destructor.
#pragma once

#include <etcd/rpc.pb.h>
#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "meta/store_access.h"
#include "meta/store_engine.h"
#include "transport/peer_places.h"
#include "transport/silent_requests.h"

namespace unreft::meta {

class ServerCall : public std::enable_shared_from_this<ServerCall> {
 public:
  virtual ~ServerCall() = default;
  // Finishes the call if it is not finished yet.
  virtual void Abort(const grpc::Status& status) = 0;

 protected:
  // For tasks that may outlive the call.
  template <typename Call>
  static std::shared_ptr<Call> Self(Call* call) {
    return std::static_pointer_cast<Call>(call->shared_from_this());
  }
};

// Owns the calls. Thread-safe.
class ServerCalls {
 public:
  // False: the server is going, or there are too many already; the call is to be aborted.
  bool Add(std::shared_ptr<ServerCall> call) {
    std::lock_guard lock(mutex_);
    calls_[call.get()] = std::move(call);
    return !stopping_ && calls_.size() <= kCallsMax;
  }
  // When gRPC has done with it.
  void Remove(ServerCall* call) {
    std::shared_ptr<ServerCall> last;  // destroyed without the lock
    std::lock_guard lock(mutex_);
    const auto found = calls_.find(call);
    last = std::move(found->second);
    calls_.erase(found);
  }
  // Every call there is, and every later one, is refused or finished.
  void AbortAll() {
    std::map<ServerCall*, std::shared_ptr<ServerCall>> calls;
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      calls = calls_;
    }
    for (const auto& [key, call] : calls) {
      call->Abort({grpc::StatusCode::UNAVAILABLE, "the meta store is stopping"});
    }
  }

 private:
  static constexpr size_t kCallsMax = 100'000;  // other limits are reached long before

  std::mutex mutex_;
  bool stopping_ = false;  // these two: guarded by mutex_
  std::map<ServerCall*, std::shared_ptr<ServerCall>> calls_;
};

// What every call needs of its server. `alive` is false once the server is gone.
struct ServerContext {
  Executor& executor;
  StoreEngine& engine;
  ServerCalls& calls;
  std::shared_ptr<std::atomic<bool>> alive = std::make_shared<std::atomic<bool>>(true);
  std::shared_ptr<SilentRequests> silent;  // streams without a message yet
  PeerPlaces& streams;                     // the others
  PeerPlaces& watches;
  uint64_t stream_bytes_max = 0;
  bool tells_apart = false;  // clients, by their certificates

  StoreAccess AccessOf(const grpc::CallbackServerContext& call) const {
    if (!tells_apart) return StoreAccess::ToAll();
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri :
         call.auth_context()->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
      uris.emplace_back(uri.data(), uri.size());
    }
    return StoreAccess::ToJobsOf(uris);
  }

  // Runs `task` in a turn, if the server is there then.
  void Post(Task task) {
    executor.Post([alive = alive, task = std::move(task)]() mutable {
      if (*alive) task();
    });
  }

  void Fill(etcdserverpb::ResponseHeader& header, Revision revision) const {
    header.set_cluster_id(engine.cluster_id());
    header.set_member_id(engine.cluster_id());
    header.set_revision(static_cast<int64_t>(revision.value));
    header.set_raft_term(1);
  }
};

inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message())};
}

// One request, one answer.
class ServerUnary final : public grpc::ServerUnaryReactor, public ServerCall {
 public:
  explicit ServerUnary(ServerContext& context) : calls_(context.calls) {}

  void Answer(const absl::Status& status) { Abort(ToGrpc(status)); }
  void Abort(const grpc::Status& status) override {
    if (!std::exchange(finished_, true)) Finish(status);
  }
  bool finished() const { return finished_; }

 private:
  void OnDone() override { calls_.Remove(this); }

  ServerCalls& calls_;
  bool finished_ = false;
};

// A new call of type Call, already refused if it may not be.
template <typename Call>
std::shared_ptr<Call> BeginCall(ServerContext& context) {
  auto call = std::make_shared<Call>(context);
  if (!context.calls.Add(call)) {
    call->Abort({grpc::StatusCode::UNAVAILABLE,
                 "the meta store is stopping or has too many calls under way"});
  }
  return call;
}

}  // namespace unreft::meta
