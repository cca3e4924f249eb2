// What a meta store answers: to a client's Txn and to its watch, and what the job's records make of
// it. A store is anybody who has its address.
//
// The first byte chooses: a TxnResponse to a Txn of a put and two reads; WatchResponses, each its
// length in two bytes and its bytes; or a RangeResponse with the keys and values that a JobStore
// reads, and more of them as its watch brings them.
#include <etcd/rpc.pb.h>

#include <memory>
#include <set>

#include "base/check.h"
#include "meta/etcd_wire.h"
#include "meta/grpc_common.h"
#include "meta/job_store.h"
#include "meta/watch_progress.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/sim_executor.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/job_records.h"

namespace unreft::fuzz {
namespace {

namespace pb = etcdserverpb;
using meta::KeyRange;
using meta::Kv;
using meta::WatchEvent;
using meta::WatchId;

constexpr char kPrefix[] = "unreft/job/";

meta::Txn ExampleTxn() {
  meta::Txn txn;
  txn.compares.push_back(meta::Compare::Absent("unreft/job/leader"));
  txn.then.push_back(meta::PutOp{"unreft/job/leader", "presence", {7}});
  txn.then.push_back(meta::GetOp{{"unreft/job/view"}});
  txn.then.push_back(meta::GetOp{{kPrefix, true}});
  txn.otherwise.push_back(meta::GetOp{{"unreft/job/leader"}});
  return txn;
}

void UseTxnResponse(const std::string& bytes) {
  pb::TxnResponse response;
  if (!response.ParseFromString(bytes)) return;
  const pb::TxnRequest request = meta::ToWire(ExampleTxn());
  const auto result = meta::FromWire(request, std::move(response));
  if (!result.ok()) return;
  // What callers rely on: an answer to each question, of the keys that were asked for.
  UNREFT_CHECK(result->gets.size() == (result->succeeded ? 2 : 1));
  for (const meta::KeyValue& kv : result->gets.back()) {
    UNREFT_CHECK(kv.key.starts_with(result->succeeded ? kPrefix : "unreft/job/leader"));
  }
}

void UseWatchResponses(Draw& draw) {
  const meta::KeySpan span = meta::KeySpan::Of({kPrefix, true});
  meta::WatchProgress progress(1, meta::Revision{3});
  meta::Revision told;
  while (!draw.empty()) {
    pb::WatchResponse response;
    if (!response.ParseFromString(draw.LongText())) continue;
    auto events = meta::FromWire(span, std::move(response));
    if (!events.ok()) continue;
    for (const auto& revision : progress.Deliver(*std::move(events))) {
      UNREFT_CHECK(!revision.empty() && revision.front().kv.mod_revision > told);
      told = revision.front().kv.mod_revision;
      for (const WatchEvent& event : revision) {
        UNREFT_CHECK(event.kv.mod_revision == told && span.Contains(event.kv.key));
      }
    }
    UNREFT_CHECK(told < progress.next());
  }
}

// A store that answers what the input says.
class ScriptedKv final : public Kv {
 public:
  ScriptedKv(Executor& executor, pb::RangeResponse all)
      : executor_(executor), all_(std::move(all)) {}

  void Commit(meta::Txn txn, TxnDone done) override {
    const pb::TxnRequest request = meta::ToWire(std::move(txn));
    pb::TxnResponse response;
    response.set_succeeded(true);
    response.mutable_header()->set_revision(9);
    for (const pb::RequestOp& op : request.success()) {
      pb::ResponseOp& to = *response.add_responses();
      if (op.has_request_range()) *to.mutable_response_range() = all_;
      if (op.has_request_put()) to.mutable_response_put();
    }
    Answer(std::move(done), meta::FromWire(request, std::move(response)));
  }
  void GrantLease(Duration, LeaseDone done) override { Answer(std::move(done), meta::LeaseId{7}); }
  void KeepAlive(meta::LeaseId, Done done) override { Answer(std::move(done), absl::OkStatus()); }
  void RevokeLease(meta::LeaseId, Done done) override { Answer(std::move(done), absl::OkStatus()); }
  WatchId Watch(KeyRange range, meta::Revision, OnEvents on_events, Done) override {
    span_ = meta::KeySpan::Of(range);
    on_events_ = std::move(on_events);
    return WatchId{1};
  }
  void CancelWatch(WatchId) override { on_events_ = nullptr; }

  void Tell(pb::WatchResponse response) {
    auto events = meta::FromWire(span_, std::move(response));
    if (events.ok() && on_events_) on_events_(*std::move(events));
  }

 private:
  template <typename Done, typename Result>
  void Answer(Done done, Result result) {
    executor_.Post([done = std::move(done), result = std::move(result)]() mutable {
      done(std::move(result));
    });
  }

  Executor& executor_;
  const pb::RangeResponse all_;
  meta::KeySpan span_;
  OnEvents on_events_;
};

void UseJobStore(Draw& draw) {
  pb::RangeResponse all;
  if (!all.ParseFromString(draw.LongText())) return;
  SimScheduler scheduler(1);
  auto executor = scheduler.NewExecutor("node");
  Random random(3);
  CaptureLogSink sink;
  Log log(sink);
  ScriptedKv kv(*executor, std::move(all));
  auto store = std::make_unique<meta::JobStore>(kv, *executor, random, log, "job", [] {});
  executor->Post([&] { store->Start(); });
  scheduler.RunFor(std::chrono::seconds(1));
  while (!draw.empty()) {
    pb::WatchResponse response;
    if (!response.ParseFromString(draw.LongText())) continue;
    executor->Post([&] { kv.Tell(std::move(response)); });
    scheduler.RunFor(std::chrono::milliseconds(10));
  }
  if (store->ready()) UseJobState(store->state());
  executor->Kill();
}

mvccpb::KeyValue KeyOf(const std::string& name, const std::string& value) {
  mvccpb::KeyValue kv;
  kv.set_key(kPrefix + name);
  kv.set_value(value);
  kv.set_create_revision(2);
  kv.set_mod_revision(5);
  kv.set_version(1);
  return kv;
}

}  // namespace

std::vector<std::string> Seeds() {
  pb::RangeResponse all;
  pb::WatchResponse watched;
  int64_t revision = 10;
  for (const auto& [name, record] : ExampleRecords()) {
    *all.add_kvs() = KeyOf(name, record->SerializeAsString());
    mvccpb::Event& event = *watched.add_events();
    *event.mutable_kv() = KeyOf(name, record->SerializeAsString());
    event.mutable_kv()->set_mod_revision(revision++);
  }
  watched.add_events()->set_type(mvccpb::Event::DELETE);
  *watched.mutable_events()->rbegin()->mutable_kv() = KeyOf("node/0", "");
  watched.mutable_events()->rbegin()->mutable_kv()->set_mod_revision(revision);
  pb::TxnResponse txn;
  txn.set_succeeded(true);
  txn.mutable_header()->set_revision(9);
  txn.add_responses()->mutable_response_put();
  txn.add_responses()->mutable_response_range();
  *txn.add_responses()->mutable_response_range() = all;
  pb::TxnResponse failed;
  *failed.add_responses()->mutable_response_range()->add_kvs() = KeyOf("leader", "presence");
  const std::string told = LongTextOf(watched.SerializeAsString());
  return {std::string(1, '\0') + txn.SerializeAsString(),
          std::string(1, '\0') + failed.SerializeAsString(), std::string(1, '\1') + told + told,
          std::string(1, '\2') + LongTextOf(all.SerializeAsString()) + told};
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  fuzz::Draw draw(fuzz::Bytes(data, size));
  switch (draw.Below(3)) {
    case 0:
      fuzz::UseTxnResponse(draw.Rest());
      break;
    case 1:
      fuzz::UseWatchResponses(draw);
      break;
    default:
      fuzz::UseJobStore(draw);
  }
  return 0;
}
