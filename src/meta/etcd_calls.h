// The calls of EtcdKv that gRPC has not let go of yet, and the one shape of a watch's stream.
//
// gRPC calls back on threads of its own. All they do is post to the executor and then leave their
// CallSet; whoever destroys the set has waited until it is empty, so nothing of ours is touched
// afterwards.
#pragma once

#include <absl/functional/any_invocable.h>
#include <etcd/rpc.grpc.pb.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/executor.h"

namespace unreft::meta {

// What gRPC needs until a call has ended.
struct EtcdCall {
  virtual ~EtcdCall() = default;
  grpc::ClientContext context;
};

// Thread-safe.
class CallSet {
 public:
  ~CallSet() { CancelAndWait(); }

  void Add(std::shared_ptr<EtcdCall> call);
  // The last thing that gRPC's thread does with a call.
  void Remove(const std::shared_ptr<EtcdCall>& call);
  size_t size() const;
  // Not from a callback of gRPC.
  void CancelAndWait();

 private:
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  std::set<std::shared_ptr<EtcdCall>> calls_;  // guarded by mutex_
};

template <typename Request, typename Response>
struct UnaryCall : EtcdCall {
  Request request;
  Response response;
};

// One request, one answer, on a stream: LeaseKeepAlive.
class KeepAliveCall final : public EtcdCall,
                            public grpc::ClientBidiReactor<etcdserverpb::LeaseKeepAliveRequest,
                                                           etcdserverpb::LeaseKeepAliveResponse>,
                            public std::enable_shared_from_this<KeepAliveCall> {
 public:
  using Response = etcdserverpb::LeaseKeepAliveResponse;
  // `done` runs on a thread of gRPC.
  void Start(etcdserverpb::Lease::Stub& stub, uint64_t lease, CallSet& set,
             absl::AnyInvocable<void(grpc::Status, Response)> done);

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  CallSet* set_ = nullptr;
  etcdserverpb::LeaseKeepAliveRequest request_;
  Response response_;
  bool answered_ = false;
  absl::AnyInvocable<void(grpc::Status, Response)> done_;
};

// One watch of the server. Read, Close: in turns of its owner's executor.
class WatchStream final
    : public EtcdCall,
      public grpc::ClientBidiReactor<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>,
      public std::enable_shared_from_this<WatchStream> {
 public:
  // Both run on threads of gRPC: a response is there, and the next one is not read before Read; the
  // stream has ended, after Close too.
  struct Handlers {
    absl::AnyInvocable<void()> on_response;
    absl::AnyInvocable<void(grpc::Status)> on_end;
  };
  void Start(etcdserverpb::Watch::Stub& stub, etcdserverpb::WatchRequest request, CallSet& set,
             Handlers handlers);

  etcdserverpb::WatchResponse& response() { return response_; }
  void Read() { StartRead(&response_); }
  // Idempotent. The stream ends soon.
  void Close();

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  CallSet* set_ = nullptr;
  etcdserverpb::WatchRequest request_;
  etcdserverpb::WatchResponse response_;
  Handlers handlers_;
  std::once_flag released_;  // of the hold that lets turns start reads
};

}  // namespace unreft::meta
