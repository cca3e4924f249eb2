#include "tests/sim/cluster/lying_kv.h"

#include <optional>
#include <utility>
#include <vector>

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
  LyingKv(PlantedBug bug, std::unique_ptr<meta::Kv> kv) : bug_(bug), kv_(std::move(kv)) {}

  void Commit(Txn txn, TxnDone done) override {
    if (bug_ == PlantedBug::kWritesUnfenced) RemoveFence(txn);
    if (bug_ == PlantedBug::kStoresManifests) AddManifest(txn);
    if (bug_ == PlantedBug::kGivesUpCommitted && IsCommit(txn)) GiveUpAlso(txn);
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
      record.set_after_step(commit.step() - 1);
      record.set_through_step(commit.step());
      txn.then.push_back(PutOp{"unreft/sim/abandoned", record.SerializeAsString(), LeaseId{}});
    }
  }

  static bool IsCommit(const Txn& txn) {
    return Writes(txn, "/commit") && !Writes(txn, "/timeline");
  }

  // Once more, whatever has happened meanwhile.
  void WriteAfter(Txn txn) {
    txn.compares.clear();
    kv_->Commit(std::move(txn), [](auto) {});
  }

  const PlantedBug bug_;
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
      break;
    default:
      if (!forgets) return kv;
  }
  return std::make_unique<LyingKv>(machine.bug, std::move(kv));
}

}  // namespace unreft::sim
