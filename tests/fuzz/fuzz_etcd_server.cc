// What clients send to the embedded meta store: etcd's requests, one after the other, applied to a
// real engine over a fake disk. At the end the store is opened again: it is what it was.
//
// A request: its kind, its length in two bytes, its bytes.
#include <etcd/rpc.pb.h>

#include <memory>

#include "base/check.h"
#include "meta/server_wire.h"
#include "meta/store_engine.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/fake_record_store.h"
#include "tests/fakes/sim_executor.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/fuzz.h"

namespace unreft::fuzz {
namespace {

namespace pb = etcdserverpb;

enum Kind : uint8_t { kRange, kPut, kDelete, kTxn, kCompact, kGrant, kRevoke, kWatch, kKinds };

class Store {
 public:
  Store() { Open(); }
  ~Store() { executor_->Kill(); }

  // As the server does with a request of that kind.
  void Apply(uint8_t kind, const std::string& bytes) {
    bool is_answered = false;
    bool is_asked = false;
    executor_->Post([&] { is_asked = Begin(kind, bytes, [&] { is_answered = true; }); });
    scheduler_.RunFor(std::chrono::milliseconds(100));
    UNREFT_CHECK(is_answered == is_asked, "a request of kind {}", kind);
  }

  void OpenAgain() {
    const Revision revision = engine_->revision();
    const auto keys = engine_->state().keys();
    executor_->Kill();
    engine_.reset();
    records_.reset();
    Open();
    UNREFT_CHECK(engine_->revision() == revision);
    // Leases count from the beginning again, so nothing has gone.
    UNREFT_CHECK(engine_->state().keys() == keys);
  }

 private:
  using Revision = meta::Revision;

  void Open() {
    executor_ = scheduler_.NewExecutor("store");
    records_ = *FakeRecordStore::Open(disk_, *executor_);
    engine_ = std::make_unique<meta::StoreEngine>(*executor_, *records_, random_, log_, options_);
    absl::Status started = absl::UnknownError("not started");
    executor_->Post([&] { engine_->Start([&](absl::Status status) { started = status; }); });
    scheduler_.RunFor(std::chrono::milliseconds(100));
    UNREFT_CHECK(started.ok(), "{}", std::string(started.message()));
  }

  // Whether it asked the engine, which then answers.
  bool Begin(uint8_t kind, const std::string& bytes, absl::AnyInvocable<void()> done) {
    switch (kind) {
      case kRange:
        return One<pb::RangeRequest, pb::RangeResponse>(bytes, std::move(done));
      case kPut:
        return One<pb::PutRequest, pb::PutResponse>(bytes, std::move(done));
      case kDelete:
        return One<pb::DeleteRangeRequest, pb::DeleteRangeResponse>(bytes, std::move(done));
      case kTxn:
        return RunTxn(bytes, std::move(done));
      case kWatch:
        return Watch(bytes);
      default:
        return Other(kind, bytes, std::move(done));
    }
  }

  template <typename Request, typename Response>
  bool One(const std::string& bytes, absl::AnyInvocable<void()> done) {
    auto request = std::make_shared<Request>();
    if (!request->ParseFromString(bytes)) return false;
    meta::StoreTxn txn;
    if constexpr (std::is_same_v<Request, pb::DeleteRangeRequest>) {
      txn.then.push_back(meta::FromWire(*request));
    } else {
      auto op = meta::FromWire(*request);
      if (!op.ok()) return false;
      txn.then.push_back(*std::move(op));
    }
    engine_->Commit(std::move(txn), [request, done = std::move(done)](auto reply) mutable {
      done();
      if (!reply.ok()) return;
      UNREFT_CHECK(reply->replies.size() == 1);
      Response response;
      if constexpr (std::is_same_v<Request, pb::RangeRequest>) {
        meta::ToWire(std::move(reply->replies[0]), response);
      } else {
        meta::ToWire(std::move(reply->replies[0]), request->prev_kv(), response);
      }
    });
    return true;
  }

  bool RunTxn(const std::string& bytes, absl::AnyInvocable<void()> done) {
    auto request = std::make_shared<pb::TxnRequest>();
    if (!request->ParseFromString(bytes)) return false;
    auto txn = meta::FromWire(*request);
    if (!txn.ok()) return false;
    engine_->Commit(*std::move(txn), [request, done = std::move(done)](auto reply) mutable {
      done();
      if (!reply.ok()) return;
      pb::TxnResponse response;
      meta::ToWire(*request, *std::move(reply), response);
    });
    return true;
  }

  bool Other(uint8_t kind, const std::string& bytes, absl::AnyInvocable<void()> done) {
    if (kind == kCompact) {
      pb::CompactionRequest request;
      if (!request.ParseFromString(bytes)) return false;
      engine_->Compact({static_cast<uint64_t>(request.revision())},
                       [done = std::move(done)](auto) mutable { done(); });
    } else if (kind == kGrant) {
      pb::LeaseGrantRequest request;
      if (!request.ParseFromString(bytes)) return false;
      const auto ttl_s = static_cast<uint64_t>(std::max<int64_t>(request.ttl(), 0));
      engine_->GrantLease({static_cast<uint64_t>(request.id())}, ttl_s,
                          [done = std::move(done)](auto) mutable { done(); });
    } else {
      pb::LeaseRevokeRequest request;
      if (!request.ParseFromString(bytes)) return false;
      engine_->RevokeLease({static_cast<uint64_t>(request.id())},
                           [done = std::move(done)](auto) mutable { done(); });
    }
    return true;
  }

  bool Watch(const std::string& bytes) {
    pb::WatchRequest request;
    if (!request.ParseFromString(bytes)) return false;
    const pb::WatchCreateRequest& create = request.create_request();
    const Revision start = create.start_revision() > 0
                               ? Revision{static_cast<uint64_t>(create.start_revision())}
                               : Revision{engine_->revision().value + 1};
    const meta::KeySpan span{create.key().empty() ? std::string(1, '\0') : create.key(),
                             create.range_end()};
    (void)engine_->Watch(span, start, [span](const meta::StoreWatchEvents& events) {
      for (const meta::WatchEvent& event : events.events) {
        UNREFT_CHECK(span.Contains(event.kv.key));
        UNREFT_CHECK(event.kv.mod_revision == events.revision);
      }
    });
    return false;
  }

  SimScheduler scheduler_{1};
  FakeDisk disk_{2};
  Random random_{3};
  CaptureLogSink sink_;
  Log log_{sink_};
  meta::StoreEngineOptions options_{.limits = {.history_events_max = 4, .txn_ops_max = 16}};
  std::unique_ptr<SimExecutor> executor_;
  std::unique_ptr<FakeRecordStore> records_;
  std::unique_ptr<meta::StoreEngine> engine_;
};

std::string Input(uint8_t kind, const google::protobuf::MessageLite& request) {
  return static_cast<char>(kind) + LongTextOf(request.SerializeAsString());
}

}  // namespace

std::vector<std::string> Seeds() {
  pb::LeaseGrantRequest grant;
  grant.set_id(7);
  grant.set_ttl(10);
  pb::PutRequest put;
  put.set_key("unreft/job/node/0");
  put.set_value("presence");
  put.set_lease(7);
  put.set_prev_kv(true);
  pb::RangeRequest range;
  range.set_key("unreft/job/");
  range.set_range_end("unreft/job0");
  range.set_limit(1);
  range.set_sort_order(pb::RangeRequest::DESCEND);
  pb::DeleteRangeRequest erase;
  erase.set_key(std::string(1, '\0'));
  erase.set_range_end(std::string(1, '\0'));
  pb::TxnRequest txn;
  pb::Compare& compare = *txn.add_compare();
  compare.set_key("unreft/job/leader");
  compare.set_target(pb::Compare::CREATE);
  compare.set_create_revision(0);
  txn.add_success()->mutable_request_put()->set_key("unreft/job/leader");
  *txn.add_success()->mutable_request_range() = range;
  *txn.add_failure()->mutable_request_delete_range() = erase;
  pb::CompactionRequest compact;
  compact.set_revision(2);
  pb::LeaseRevokeRequest revoke;
  revoke.set_id(7);
  pb::WatchRequest watch;
  watch.mutable_create_request()->set_key("unreft/job/");
  watch.mutable_create_request()->set_range_end("unreft/job0");
  watch.mutable_create_request()->set_start_revision(2);
  const std::string all = Input(kGrant, grant) + Input(kWatch, watch) + Input(kPut, put) +
                          Input(kTxn, txn) + Input(kRange, range) + Input(kCompact, compact) +
                          Input(kTxn, txn) + Input(kRevoke, revoke) + Input(kDelete, erase);
  return {all, Input(kTxn, txn), Input(kRange, range), Input(kPut, put) + Input(kDelete, erase)};
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  fuzz::Draw draw(fuzz::Bytes(data, size));
  fuzz::Store store;
  // After each the engine and its disk run for a while.
  for (int requests = 0; !draw.empty() && requests < 32; ++requests) {
    const auto kind = static_cast<uint8_t>(draw.Below(fuzz::kKinds));
    store.Apply(kind, draw.LongText());
  }
  store.OpenAgain();
  return 0;
}
