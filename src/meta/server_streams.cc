#include "meta/server_streams.h"

#include <utility>

#include "meta/grpc_common.h"
#include "transport/grpc_peer.h"

namespace unreft::meta {
namespace {

namespace pb = etcdserverpb;

}  // namespace

// --- ServerStream ---

void ServerStream::BeginSilent(const grpc::CallbackServerContext& grpc) {
  peer_ = GrpcPeer(grpc);
  silent_number_ = context_.silent->Add([this, self = Self(this)](const absl::Status& why) {
    context_.Post([this, self, why] { Abort(ToGrpc(why)); });
  });
}

void ServerStream::Leave() {
  context_.silent->Remove(silent_number_);
  context_.streams.Give(peer_, place_);
  context_.calls.Remove(this);
}

bool ServerStream::HasPlace() {
  if (place_ != 0) return true;
  const auto place = context_.streams.Take(
      peer_, [this, self = Self(this)](const absl::Status& why) { Abort(ToGrpc(why)); });
  if (place.ok()) {
    place_ = *place;
  } else {
    Abort(ToGrpc(place.status()));
  }
  return place.ok();
}

// --- KeepAliveServerStream ---

void KeepAliveServerStream::Begin(const grpc::CallbackServerContext& grpc) {
  if (finished_) return;  // refused
  BeginSilent(grpc);
  StartRead(&request_);
}

void KeepAliveServerStream::Abort(const grpc::Status& status) {
  if (!std::exchange(finished_, true)) Finish(status);
}

void KeepAliveServerStream::OnReadDone(bool ok) {
  EndSilence();
  context_.Post([this, ok, self = Self(this)] {
    if (!ok) return Abort(grpc::Status::OK);
    OnRequest();
  });
}

void KeepAliveServerStream::OnRequest() {
  if (finished_ || !HasPlace()) return;
  const LeaseId lease{static_cast<uint64_t>(request_.id())};
  context_.engine.KeepAlive(
      lease, [this, self = Self(this), alive = context_.alive, lease](auto result) {
        if (!*alive || finished_) return;
        response_.Clear();
        context_.Fill(*response_.mutable_header(), context_.engine.revision());
        response_.set_id(static_cast<int64_t>(lease.value));
        response_.set_ttl(result.ok() ? static_cast<int64_t>(result->ttl_s) : 0);  // 0: has ended
        StartWrite(&response_);
      });
}

void KeepAliveServerStream::OnWriteDone(bool ok) {
  context_.Post([this, ok, self = Self(this)] {
    if (!ok) return Abort(grpc::Status::OK);
    if (!finished_) StartRead(&request_);
  });
}

void KeepAliveServerStream::OnDone() { Leave(); }

// --- WatchServerStream ---

void WatchServerStream::Begin(const grpc::CallbackServerContext& grpc) {
  if (finished_) return;  // refused
  access_ = context_.AccessOf(grpc);
  BeginSilent(grpc);
  StartRead(&request_);
}

void WatchServerStream::Abort(const grpc::Status& status) {
  if (std::exchange(finished_, true)) return;
  for (const auto& [id, watch] : watches_) EndWatch(watch);
  watches_.clear();
  Finish(status);
}

void WatchServerStream::OnReadDone(bool ok) {
  EndSilence();
  context_.Post([this, ok, self = Self(this)] {
    if (!ok) return Abort(grpc::Status::OK);
    OnRequest();
  });
}

void WatchServerStream::OnRequest() {
  if (finished_ || !HasPlace()) return;
  if (request_.has_create_request()) {
    Create(request_.create_request());
  } else if (request_.has_cancel_request()) {
    Cancel(request_.cancel_request().watch_id());
  } else if (request_.has_progress_request()) {
    // Events are sent in the order of their revisions, so what is queued already comes first.
    Send(NewResponse(-1, context_.engine.revision()));
  }
  if (!finished_) StartRead(&request_);
}

void WatchServerStream::Create(const pb::WatchCreateRequest& create) {
  const Revision now = context_.engine.revision();
  const int64_t id = create.watch_id() != 0 ? create.watch_id() : last_watch_id_ + 1;
  Response created = NewResponse(id, now);
  created.set_created(true);
  const bool is_id = id >= 0 && id < INT64_MAX && !watches_.contains(id);
  if (!is_id || create.prev_kv() || create.filters_size() != 0) {
    created.set_canceled(true);
    created.set_cancel_reason(
        "the embedded meta store has no watches with filters, previous values, or an id that is in "
        "use or negative");
    return Send(std::move(created));
  }
  KeySpan span{create.key().empty() ? std::string(1, '\0') : create.key(), create.range_end()};
  if (absl::Status status = access_.Check(span); !status.ok()) {
    created.set_canceled(true);
    created.set_cancel_reason(std::string(status.message()));
    return Send(std::move(created));
  }
  last_watch_id_ = std::max(last_watch_id_, id);
  const Revision start = create.start_revision() > 0
                             ? Revision{static_cast<uint64_t>(create.start_revision())}
                             : Revision{now.value + 1};
  const absl::StatusOr<Watch> watch = StartWatch(std::move(span), start, id);
  if (watch.ok()) watches_[id] = *watch;  // Send may end them all
  Send(std::move(created));
  if (watch.ok()) return;
  Response refused = NewResponse(id, now);
  refused.set_canceled(true);
  refused.set_cancel_reason(std::string(watch.status().message()));
  if (absl::IsOutOfRange(watch.status())) {
    refused.set_compact_revision(static_cast<int64_t>(context_.engine.first_watchable().value));
  }
  Send(std::move(refused));
}

absl::StatusOr<WatchServerStream::Watch> WatchServerStream::StartWatch(KeySpan span, Revision start,
                                                                       int64_t watch_id) {
  const auto place =
      context_.watches.Take(peer_, [this, self = Self(this), watch_id](const absl::Status& why) {
        Cancel(watch_id, std::string(why.message()));
      });
  if (!place.ok()) return place.status();
  const absl::StatusOr<WatchId> watch = context_.engine.Watch(
      std::move(span), start,
      [this, self = Self(this), alive = context_.alive, watch_id](const StoreWatchEvents& events) {
        if (*alive) OnEvents(watch_id, events);
      });
  if (watch.ok()) return Watch{*watch, *place};
  context_.watches.Give(peer_, *place);
  return watch.status();
}

void WatchServerStream::EndWatch(const Watch& watch) {
  context_.engine.CancelWatch(watch.id);
  context_.watches.Give(peer_, watch.place);
}

void WatchServerStream::Cancel(int64_t watch_id, const std::string& reason) {
  const auto found = watches_.find(watch_id);
  if (found == watches_.end()) return;
  EndWatch(found->second);
  watches_.erase(found);
  Response canceled = NewResponse(watch_id, context_.engine.revision());
  canceled.set_canceled(true);
  canceled.set_cancel_reason(reason);
  Send(std::move(canceled));
}

void WatchServerStream::OnEvents(int64_t watch_id, const StoreWatchEvents& events) {
  Response response = NewResponse(watch_id, events.revision);
  for (const WatchEvent& event : events.events) {
    mvccpb::Event& wire = *response.add_events();
    if (event.kind == WatchEvent::Kind::kDelete) wire.set_type(mvccpb::Event::DELETE);
    ToWire(event.kv, *wire.mutable_kv());
  }
  Send(std::move(response));
}

WatchServerStream::Response WatchServerStream::NewResponse(int64_t watch_id, Revision revision) {
  Response response;
  context_.Fill(*response.mutable_header(), revision);
  response.set_watch_id(watch_id);
  return response;
}

void WatchServerStream::Send(Response response) {
  if (finished_) return;
  queue_bytes_ += response.ByteSizeLong();
  queue_.push_back(std::move(response));
  if (queue_bytes_ > context_.stream_bytes_max && queue_.size() > 1) {
    return Abort({grpc::StatusCode::RESOURCE_EXHAUSTED, "the reader of this watch is too slow"});
  }
  if (queue_.size() == 1) WriteNext();
}

void WatchServerStream::WriteNext() { StartWrite(&queue_.front()); }

void WatchServerStream::OnWriteDone(bool ok) {
  context_.Post([this, ok, self = Self(this)] {
    if (finished_) return;
    if (!ok) return Abort(grpc::Status::OK);
    queue_bytes_ -= queue_.front().ByteSizeLong();
    queue_.pop_front();
    if (!queue_.empty()) WriteNext();
  });
}

void WatchServerStream::OnDone() { Leave(); }

}  // namespace unreft::meta
