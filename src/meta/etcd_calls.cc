#include "meta/etcd_calls.h"

namespace unreft::meta {

void CallSet::Add(std::shared_ptr<EtcdCall> call) {
  std::lock_guard lock(mutex_);
  calls_.insert(std::move(call));
}

void CallSet::Remove(const std::shared_ptr<EtcdCall>& call) {
  std::lock_guard lock(mutex_);
  calls_.erase(call);
  if (calls_.empty()) empty_.notify_all();
}

size_t CallSet::size() const {
  std::lock_guard lock(mutex_);
  return calls_.size();
}

void CallSet::CancelAndWait() {
  std::set<std::shared_ptr<EtcdCall>> calls;
  {
    std::lock_guard lock(mutex_);
    calls = calls_;
  }
  // Without the lock: a callback may run within.
  for (const auto& call : calls) call->context.TryCancel();
  calls.clear();
  std::unique_lock lock(mutex_);
  empty_.wait(lock, [this] { return calls_.empty(); });
}

void KeepAliveCall::Start(etcdserverpb::Lease::Stub& stub, uint64_t lease, CallSet& set,
                          absl::AnyInvocable<void(grpc::Status, Response)> done) {
  set_ = &set;
  done_ = std::move(done);
  request_.set_id(static_cast<int64_t>(lease));
  set.Add(shared_from_this());
  stub.async()->LeaseKeepAlive(&context, this);
  StartWriteLast(&request_, {});
  StartRead(&response_);
  StartCall();
}

void KeepAliveCall::OnReadDone(bool ok) {
  answered_ = ok;
  if (ok) context.TryCancel();  // the server need not be heard out
}

void KeepAliveCall::OnDone(const grpc::Status& status) {
  const bool is_silent = !answered_ && status.ok();  // an empty answer means that the lease is over
  done_(answered_   ? grpc::Status::OK
        : is_silent ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "it ended without an answer")
                    : status,
        std::move(response_));
  set_->Remove(shared_from_this());
}

void WatchStream::Start(etcdserverpb::Watch::Stub& stub, etcdserverpb::WatchRequest request,
                        CallSet& set, Handlers handlers) {
  set_ = &set;
  handlers_ = std::move(handlers);
  request_ = std::move(request);
  set.Add(shared_from_this());
  // A member that is cut off from the others ends the stream instead of leaving it silent.
  context.AddMetadata("hasleader", "true");
  stub.async()->Watch(&context, this);
  AddHold();
  StartWrite(&request_);
  StartRead(&response_);
  StartCall();
}

void WatchStream::Close() {
  context.TryCancel();
  std::call_once(released_, [this] { RemoveHold(); });
}

void WatchStream::OnReadDone(bool ok) {
  if (ok) return handlers_.on_response();
  std::call_once(released_, [this] { RemoveHold(); });
}

void WatchStream::OnDone(const grpc::Status& status) {
  handlers_.on_end(status);
  set_->Remove(shared_from_this());
}

}  // namespace unreft::meta
