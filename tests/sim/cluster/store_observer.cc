#include "tests/sim/cluster/store_observer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "smp/cluster_records.h"

namespace unreft::sim {
namespace {

constexpr std::string_view kPrefix = "unreft/sim/";
// Records that the leader alone writes.
constexpr std::string_view kRecords[] = {"view", "timeline", "commit", "abandoned"};
// The chain of timelines and the versions given up, with their reasons, as many as are kept.
constexpr uint64_t kRecordBytesFixed = 16384;
constexpr uint64_t kRecordBytesPerMember = 96;
// One, and one more each time that a full record has forgotten the version.
constexpr uint64_t kWritesPerVersion = 16;

bool IsRecord(std::string_view name) {
  return std::ranges::find(kRecords, name) != std::end(kRecords);
}

// The version that a write is about; empty when it is about none.
std::string VersionIn(const std::string& name, const std::string& value) {
  if (CommitRecord commit; name == "commit" && commit.ParseFromString(value)) {
    return commit.world() == 0 ? "" : fmt::format("{}", smp::VersionOf(commit));
  }
  AbandonRecord abandoned;
  if (name != "abandoned" || !abandoned.ParseFromString(value)) return "";
  if (abandoned.versions().empty()) return "";
  return fmt::format("{}", smp::VersionOf(*abandoned.versions().rbegin()));
}

}  // namespace

StoreObserver::StoreObserver(World& world, FakeKvStore& store, uint64_t nodes, uint64_t ranks,
                             WhoIs who_is)
    : world_(world),
      store_(store),
      record_bytes_max_(kRecordBytesFixed + kRecordBytesPerMember * (nodes + ranks)),
      keys_max_(nodes + 2 + std::size(kRecords)),
      who_is_(std::move(who_is)) {
  store_.set_on_txn([this](const SimExecutor& node, const meta::StoreReply& reply) {
    OnTxn(node, reply);
  });
}

StoreObserver::~StoreObserver() { store_.set_on_txn(nullptr); }

void StoreObserver::OnTxn(const SimExecutor& node, const meta::StoreReply& reply) {
  if (reply.succeeded) writers_[reply.revision] = who_is_(node);
}

void StoreObserver::AfterEvent() {
  if (store_.ready() && attached_to_ != store_.starts()) Attach();
  // A change is looked at once it is known who wrote it: events and answers come in any order.
  while (!unseen_.empty()) {
    const meta::Revision revision = unseen_.front().front().kv.mod_revision;
    const bool is_told = !writers_.empty() && writers_.rbegin()->first >= revision;
    if (!is_told && unseen_.size() < 8) return;
    Look(unseen_.front());
    unseen_.pop_front();
    writers_.erase(writers_.begin(), writers_.upper_bound(revision));
  }
}

// The store was started: from now on, knowing what it holds.
void StoreObserver::Attach() {
  attached_to_ = store_.starts();
  unseen_.clear();
  writers_.clear();
  keys_.clear();
  writes_of_.clear();
  store_.process().Post([this, start = attached_to_] {
    const meta::KeyRange all{std::string(kPrefix), true};
    meta::Txn read;
    read.then.push_back(meta::GetOp{all});
    store_.engine()->Commit(
        meta::StoreTxn::Of(read), [this, start](absl::StatusOr<meta::StoreReply> reply) {
          if (!reply.ok() || start != attached_to_) return;
          leader_.reset();
          for (const meta::KeyValue& kv : reply->replies.at(0).kvs) {
            keys_.insert(kv.key);
            if (!kv.key.ends_with("/leader")) continue;
            leader_.emplace().ParseFromString(kv.value);
          }
          (void)store_.engine()->Watch(
              meta::KeySpan::Of({std::string(kPrefix), true}),
              meta::Revision{reply->revision.value + 1},
              [this](meta::StoreWatchEvents events) {
                std::vector<Event> revision;
                for (meta::WatchEvent& event : events.events) {
                  const bool is_put = event.kind == meta::WatchEvent::Kind::kPut;
                  revision.push_back({is_put, std::move(event.kv)});
                }
                if (!revision.empty()) unseen_.push_back(std::move(revision));
              });
        });
  });
}

void StoreObserver::Look(const std::vector<Event>& revision) {
  for (const Event& event : revision) {
    const std::string name = event.kv.key.substr(kPrefix.size());
    if (!event.is_put) {
      keys_.erase(event.kv.key);
      if (name == "leader") leader_.reset();
      continue;
    }
    keys_.insert(event.kv.key);
    if (IsRecord(name)) CheckWriter(name, event.kv.mod_revision);
    CheckSizes(name, event.kv);
    if (name == "leader") leader_.emplace().ParseFromString(event.kv.value);
  }
  if (keys_.size() > keys_max_) {
    world_.trace.Fail("the meta store has {} keys, {} are enough", keys_.size(), keys_max_);
  }
  CountWrites(revision);
}

void StoreObserver::CheckWriter(const std::string& name, meta::Revision revision) {
  ++writes_;
  const auto it = writers_.find(revision);
  if (it == writers_.end() || !it->second) return;  // the store died before it could answer
  const PresenceRecord& writer = *it->second;
  if (leader_ && leader_->slot() == writer.slot() && leader_->session() == writer.session() &&
      leader_->incarnation() == writer.incarnation()) {
    return;
  }
  world_.trace.Fail("node {} wrote the {} at revision {}, and {} leads", writer.slot(), name,
                    revision, leader_ ? fmt::format("node {}", leader_->slot()) : "nobody");
}

void StoreObserver::CheckSizes(const std::string& name, const meta::KeyValue& kv) {
  bytes_max_ = std::max<uint64_t>(bytes_max_, kv.value.size());
  if (kv.value.size() <= record_bytes_max_) return;
  world_.trace.Fail("the record '{}' has {} bytes, {} are enough", name, kv.value.size(),
                    record_bytes_max_);
}

void StoreObserver::CountWrites(const std::vector<Event>& revision) {
  // A decision names the version that it restores once more; what a store lost is written again.
  const auto is_decision = [](const Event& event) { return event.kv.key.ends_with("/timeline"); };
  if (std::ranges::any_of(revision, is_decision)) return;
  for (const Event& event : revision) {
    if (!event.is_put) continue;
    const std::string name = event.kv.key.substr(kPrefix.size());
    const std::string version = VersionIn(name, event.kv.value);
    if (version.empty() || ++writes_of_[{name, version}] <= kWritesPerVersion) continue;
    world_.trace.Fail("version {} was written as '{}' a second time", version, name);
  }
}

}  // namespace unreft::sim
