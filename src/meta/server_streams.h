// The two streams of the embedded server.
#pragma once

#include <etcd/rpc.pb.h>

#include <deque>
#include <map>

#include "meta/server_calls.h"

namespace unreft::meta {

// Renews a lease for each request, one after the other.
class KeepAliveServerStream final
    : public grpc::ServerBidiReactor<etcdserverpb::LeaseKeepAliveRequest,
                                     etcdserverpb::LeaseKeepAliveResponse>,
      public ServerCall {
 public:
  explicit KeepAliveServerStream(ServerContext& context);
  void Begin() { StartRead(&request_); }
  void Abort(const grpc::Status& status) override;

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  void OnRequest();

  ServerContext& context_;
  etcdserverpb::LeaseKeepAliveRequest request_;
  etcdserverpb::LeaseKeepAliveResponse response_;
  bool finished_ = false;
};

// Any number of watches.
class WatchServerStream final
    : public grpc::ServerBidiReactor<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>,
      public ServerCall {
 public:
  explicit WatchServerStream(ServerContext& context);
  void Begin(StoreAccess access) {
    access_ = std::move(access);
    StartRead(&request_);
  }
  void Abort(const grpc::Status& status) override;

 private:
  using Response = etcdserverpb::WatchResponse;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  void OnRequest();
  void Create(const etcdserverpb::WatchCreateRequest& create);
  void Cancel(int64_t watch_id);
  void OnEvents(int64_t watch_id, StoreWatchEvents events);
  Response NewResponse(int64_t watch_id, Revision revision);
  void Send(Response response);
  void WriteNext();

  ServerContext& context_;
  StoreAccess access_ = StoreAccess::ToJobsOf({});
  etcdserverpb::WatchRequest request_;
  std::map<int64_t, WatchId> watches_;
  int64_t last_watch_id_ = -1;
  std::deque<Response> queue_;  // the first is being written
  uint64_t queue_bytes_ = 0;
  bool finished_ = false;
};

}  // namespace unreft::meta
