#include "tests/sim/cluster/lying_kv.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/node_header.h"
#include "smp/job/cluster_records.h"

namespace unreft::sim {
namespace {

using meta::KeyRange;
using meta::LeaseId;
using meta::PutOp;
using meta::Revision;
using meta::Txn;
using meta::WatchId;

class LyingKv final : public meta::Kv {
 public:
  LyingKv(const Machine& machine, std::unique_ptr<meta::Kv> kv)
      : bug_(machine.bug), machine_(machine), kv_(std::move(kv)) {}

  void Commit(Txn txn, TxnDone done) override {
    if (bug_ == PlantedBug::kWritesUnfenced) RemoveFence(txn);
    if (bug_ == PlantedBug::kStoresManifests) AddManifest(txn);
    if (bug_ == PlantedBug::kGivesUpCommitted && IsCommit(txn)) GiveUpAlso(txn);
    if (bug_ == PlantedBug::kKeepsGroups) KeepGroups(txn);
    if (bug_ == PlantedBug::kForgetsName) {
      done = [this, done = std::move(done)](absl::StatusOr<meta::TxnResult> result) mutable {
        if (result.ok()) {
          for (auto& got : result->gets) std::ranges::for_each(got, [&](auto& kv) { NameOwn(kv); });
        }
        done(std::move(result));
      };
    }
    std::optional<Txn> again;
    if (bug_ == PlantedBug::kWritesTwice && IsCommit(txn)) again = txn;
    kv_->Commit(std::move(txn), std::move(done));
    if (again) WriteAfter(*std::move(again));
  }
  void GrantLease(Duration ttl, LeaseDone done) override { kv_->GrantLease(ttl, std::move(done)); }
  void KeepAlive(LeaseId lease, Done done) override { kv_->KeepAlive(lease, std::move(done)); }
  void RevokeLease(LeaseId lease, Done done) override { kv_->RevokeLease(lease, std::move(done)); }
  WatchId Watch(KeyRange range, Revision start, OnEvents on_events, Done on_end) override {
    if (bug_ == PlantedBug::kForgetsPins) {
      on_events = [on_events = std::move(on_events)](std::vector<meta::WatchEvent> events) mutable {
        std::erase_if(events, [](const auto& event) { return event.kv.key.ends_with("/pins"); });
        on_events(std::move(events));
      };
    }
    if (bug_ == PlantedBug::kForgetsName) {
      on_events = [this,
                   on_events = std::move(on_events)](std::vector<meta::WatchEvent> events) mutable {
        for (meta::WatchEvent& event : events) NameOwn(event.kv);
        on_events(std::move(events));
      };
    }
    return kv_->Watch(std::move(range), start, std::move(on_events), std::move(on_end));
  }
  void CancelWatch(WatchId watch) override { kv_->CancelWatch(watch); }

 private:
  static bool Writes(const Txn& txn, std::string_view record) {
    for (const meta::Op& op : txn.then) {
      const auto* put = std::get_if<PutOp>(&op);
      if (put != nullptr && put->key.ends_with(record)) return true;
    }
    return false;
  }

  // A view, a commit: whoever leads by now.
  static void RemoveFence(Txn& txn) {
    if (Writes(txn, "/leader")) return;
    std::erase_if(txn.compares,
                  [](const meta::Compare& compare) { return compare.key.ends_with("/leader"); });
  }

  static void AddManifest(Txn& txn) {
    if (!Writes(txn, "/commit")) return;
    txn.then.push_back(PutOp{"unreft/sim/manifest", std::string(1000, 'm'), LeaseId{}});
  }

  static void GiveUpAlso(Txn& txn) {
    for (const meta::Op& op : std::vector(txn.then)) {
      const auto* put = std::get_if<PutOp>(&op);
      if (put == nullptr || !put->key.ends_with("/commit")) continue;
      CommitRecord commit;
      commit.ParseFromString(put->value);
      AbandonRecord record;
      record.set_timeline(commit.timeline());
      if (commit.step() > 0) record.set_after_step(commit.step() - 1);
      record.set_through_step(commit.step());
      txn.then.push_back(PutOp{"unreft/sim/abandoned", record.SerializeAsString(), LeaseId{}});
    }
  }

  static void KeepGroups(Txn& txn) {
    if (!Writes(txn, "/timeline")) return;
    std::erase_if(txn.then, [](const meta::Op& op) {
      const auto* put = std::get_if<PutOp>(&op);
      return put != nullptr && put->key.ends_with("/view");
    });
  }

  static bool IsCommit(const Txn& txn) {
    return Writes(txn, "/commit") && !Writes(txn, "/timeline");
  }

  // Once more, whatever has happened meanwhile.
  void WriteAfter(Txn txn) {
    txn.compares.clear();
    kv_->Commit(std::move(txn), [](auto) {});
  }

  // A view, if it is one: it names the memory here, once any has.
  void NameOwn(meta::KeyValue& kv) const {
    ViewRecord view;
    if (!kv.key.ends_with("/view") || !view.ParseFromString(kv.value)) return;
    const std::string name = machine_.prefix() + "node";
    const auto segment = FakeSegmentStore(*machine_.memory).Open(name, Access::kReadOnly, 0, 0);
    if (!segment.ok() || *machine_.memory->ReservedBytes(name) < kNodeSegmentBytes) return;
    const absl::StatusOr<NodeBody> body = ReadNodeBody((*segment)->bytes());
    if (!body.ok() || body->view == 0) return;
    for (ViewMember& member : *view.mutable_members()) {
      if (member.slot() != machine_.slot.value) continue;
      member.set_incarnation({body->incarnation.begin(), body->incarnation.end()});
      member.set_place(machine_.slot.value);
      member.set_lost(false);
    }
    kv.value = view.SerializeAsString();
  }

  const PlantedBug bug_;
  const Machine& machine_;
  const std::unique_ptr<meta::Kv> kv_;
};

}  // namespace

std::unique_ptr<meta::Kv> LieOver(const Machine& machine, std::unique_ptr<meta::Kv> kv) {
  const bool forgets = machine.bug == PlantedBug::kForgetsPins && machine.slot == NodeSlot{1};
  switch (machine.bug) {
    case PlantedBug::kWritesUnfenced:
    case PlantedBug::kStoresManifests:
    case PlantedBug::kWritesTwice:
    case PlantedBug::kGivesUpCommitted:
    case PlantedBug::kForgetsName:
    case PlantedBug::kKeepsGroups:
      break;
    default:
      if (!forgets) return kv;
  }
  return std::make_unique<LyingKv>(machine, std::move(kv));
}

}  // namespace unreft::sim
