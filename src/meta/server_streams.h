// The two streams of the embedded server.
#pragma once

#include <etcd/rpc.pb.h>

#include <deque>
#include <map>

#include "meta/server_calls.h"

namespace unreft::meta {

// What both have in common: until its first message has come a stream is silent, then it takes one
// of the places that clients share.
class ServerStream : public ServerCall {
 protected:
  explicit ServerStream(ServerContext& context) : context_(context) {}

  // On the threads of gRPC's: it begins, a message or its end has come, it is over.
  void BeginSilent(const grpc::CallbackServerContext& grpc);
  void EndSilence() { context_.silent->Remove(silent_number_); }
  void Leave();
  // In a turn: whether it has a place, or gets one; it is aborted otherwise.
  bool HasPlace();

  ServerContext& context_;
  std::string peer_;

 private:
  uint64_t silent_number_ = 0;
  uint64_t place_ = 0;
};

// Renews a lease for each request, one after the other.
class KeepAliveServerStream final
    : public grpc::ServerBidiReactor<etcdserverpb::LeaseKeepAliveRequest,
                                     etcdserverpb::LeaseKeepAliveResponse>,
      public ServerStream {
 public:
  explicit KeepAliveServerStream(ServerContext& context) : ServerStream(context) {}
  void Begin(const grpc::CallbackServerContext& grpc);
  void Abort(const grpc::Status& status) override;

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  void OnRequest();

  etcdserverpb::LeaseKeepAliveRequest request_;
  etcdserverpb::LeaseKeepAliveResponse response_;
  bool finished_ = false;
};

// Any number of watches.
class WatchServerStream final
    : public grpc::ServerBidiReactor<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>,
      public ServerStream {
 public:
  explicit WatchServerStream(ServerContext& context) : ServerStream(context) {}
  void Begin(const grpc::CallbackServerContext& grpc);
  void Abort(const grpc::Status& status) override;

 private:
  using Response = etcdserverpb::WatchResponse;
  struct Watch {
    WatchId id;
    uint64_t place = 0;
  };

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  void OnRequest();
  void Create(const etcdserverpb::WatchCreateRequest& create);
  absl::StatusOr<Watch> StartWatch(KeySpan span, Revision start, int64_t watch_id);
  void EndWatch(const Watch& watch);
  void Cancel(int64_t watch_id, const std::string& reason = "");
  void OnEvents(int64_t watch_id, const StoreWatchEvents& events);
  Response NewResponse(int64_t watch_id, Revision revision);
  void Send(Response response);
  void WriteNext();

  StoreAccess access_ = StoreAccess::ToJobsOf({});
  etcdserverpb::WatchRequest request_;
  std::map<int64_t, Watch> watches_;
  int64_t last_watch_id_ = -1;
  std::deque<Response> queue_;  // the first is being written
  uint64_t queue_bytes_ = 0;
  bool finished_ = false;
};

}  // namespace unreft::meta
