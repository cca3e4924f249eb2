#include "tests/sim/cluster/store_observer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"

namespace unreft::sim {
namespace {

constexpr std::string_view kPrefix = "unreft/sim/";
// Records that the leader alone writes.
constexpr std::string_view kRecords[] = {"view", "timeline", "commit", "abandoned", "pins", "seed"};
// The chain of timelines.
constexpr uint64_t kRecordBytesFixed = 16384;
constexpr uint64_t kRecordBytesPerMember = 96;

bool IsRecord(std::string_view name) {
  return std::ranges::find(kRecords, name) != std::end(kRecords);
}

}  // namespace

StoreObserver::StoreObserver(World& world, FakeKvStore& store, uint64_t nodes, uint64_t ranks,
                             WhoIs who_is)
    : world_(world),
      store_(store),
      record_bytes_max_(kRecordBytesFixed + kRecordBytesPerMember * (nodes + ranks)),
      keys_max_(nodes + 2 + std::size(kRecords) - 1),
      who_is_(std::move(who_is)) {
  store_.set_on_txn(
      [this](const SimExecutor& node, const meta::StoreReply& reply) { OnTxn(node, reply); });
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
  commits_.clear();
  abandoned_.Clear();
  id_.clear();
  store_.process().Post([this, start = attached_to_] {
    const meta::KeyRange all{std::string(kPrefix), true};
    meta::Txn read;
    read.then.push_back(meta::GetOp{all});
    store_.engine()->Commit(
        meta::StoreTxn::Of(read), [this, start](absl::StatusOr<meta::StoreReply> reply) {
          if (!reply.ok() || start != attached_to_) return;
          leader_.reset();
          view_.Clear();
          timeline_.Clear();
          PinRecord pins;
          for (const meta::KeyValue& kv : reply->replies.at(0).kvs) {
            keys_.insert(kv.key);
            TellRecord(kv);
            if (kv.key.ends_with("/abandoned")) abandoned_.ParseFromString(kv.value);
            if (kv.key.ends_with("/commit")) RememberCommit(kv.value);
            if (kv.key.ends_with("/store")) OnId(kv.value);
            if (kv.key.ends_with("/pins")) pins.ParseFromString(kv.value);
            if (kv.key.ends_with("/view")) view_.ParseFromString(kv.value);
            if (kv.key.ends_with("/timeline")) timeline_.ParseFromString(kv.value);
            if (!kv.key.ends_with("/leader")) continue;
            leader_.emplace().ParseFromString(kv.value);
          }
          if (on_pins_) on_pins_(pins, true);
          (void)store_.engine()->Watch(
              meta::KeySpan::Of({std::string(kPrefix), true}),
              meta::Revision{reply->revision.value + 1}, [this](meta::StoreWatchEvents events) {
                std::vector<Event> revision;
                for (meta::WatchEvent& event : events.events) {
                  const bool is_put = event.kind == meta::WatchEvent::Kind::kPut;
                  if (is_put) TellRecord(event.kv);
                  revision.push_back({is_put, std::move(event.kv)});
                }
                if (!revision.empty()) unseen_.push_back(std::move(revision));
              });
        });
  });
}

void StoreObserver::OnId(const std::string& value) {
  StoreRecord record;
  if (record.ParseFromString(value)) ids_.insert(id_ = record.store_id());
}

bool StoreObserver::IsOver(const std::string& store_id) const {
  return !id_.empty() && store_id != id_ && ids_.contains(store_id);
}

void StoreObserver::TellRecord(const meta::KeyValue& kv) const {
  const std::string name = kv.key.substr(kPrefix.size());
  if (on_record_ && IsRecord(name)) on_record_(name, kv.mod_revision, kv.value);
  SettingsRecord settings;
  const bool are_settings = name == "settings" && settings.ParseFromString(kv.value);
  if (are_settings && on_settings_) on_settings_(settings);
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
    if (name == "store") OnId(event.kv.value);
    if (name == "view") view_.ParseFromString(event.kv.value);
    PinRecord pins;
    if (name == "pins" && on_pins_ && pins.ParseFromString(event.kv.value)) on_pins_(pins, false);
  }
  for (const Event& event : revision) {
    if (event.is_put && event.kv.key.ends_with("/timeline")) FollowTimeline(event.kv.value);
  }
  // The settings are one once a daemon has started, the pins once something was pinned; a place
  // waits once at most, for its slot or any, and is refused once.
  const auto waiting_count = std::ranges::count_if(keys_, [](const std::string& key) {
    const std::string_view name = std::string_view(key).substr(kPrefix.size());
    return name.starts_with("waiting/") || name.starts_with("spare/") ||
           name.starts_with("refused/");
  });
  const auto has = [&](const char* name) { return keys_.count(std::string(kPrefix) + name); };
  const uint64_t keys_max = keys_max_ + has("settings") + has("pins") + waiting_count;
  if (keys_.size() > keys_max) {
    std::string keys;
    for (const std::string& key : keys_) keys += " " + key;
    world_.trace.Fail("the meta store has {} keys, {} are enough:{}", keys_.size(), keys_max, keys);
  }
  CountWrites(revision);
}

void StoreObserver::CheckWriter(const std::string& name, meta::Revision revision) {
  ++writes_;
  const auto it = writers_.find(revision);
  if (it == writers_.end() || !it->second) return;  // the store died before it could answer
  const PresenceRecord& writer = it->second->presence;
  if (it->second->is_odd) {
    world_.trace.Fail("node {} wrote the {} at revision {}, and is not started like the job",
                      writer.slot(), name, revision);
  }
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

// One write for each version that is committed or given up: whoever leads next reads it, and an
// answer that is lost is read back.
void StoreObserver::CountWrites(const std::vector<Event>& revision) {
  // A decision names the version that it restores once more; what a store lost is written again.
  const auto is_decision = [](const Event& event) { return event.kv.key.ends_with("/timeline"); };
  const bool decides = std::ranges::any_of(revision, is_decision);
  const bool seeds = std::ranges::any_of(
      revision, [](const Event& event) { return event.kv.key.ends_with("/seed"); });
  for (const Event& event : revision) {
    if (!event.is_put) continue;
    if (event.kv.key.ends_with("/commit")) {
      if (decides) (void)RememberCommit(event.kv.value);
      if (!decides) CountCommit(event.kv.value);
    }
    if (event.kv.key.ends_with("/abandoned")) CountGivenUp(event.kv.value, seeds);
  }
}

// Whether it was given up is for those to ask who commit or decide now.
std::optional<Version> StoreObserver::RememberCommit(const std::string& value) {
  CommitRecord commit;
  if (!commit.ParseFromString(value) || commit.world() == 0) return std::nullopt;
  const Version version = smp::VersionOf(commit);
  if (smp::IsAbandoned(abandoned_, version)) {
    world_.trace.Fail("version {} was given up and is committed", version);
  }
  return commits_.insert(version).second ? std::nullopt : std::optional(version);
}

void StoreObserver::CountCommit(const std::string& value) {
  const std::optional<Version> again = RememberCommit(value);
  if (again) world_.trace.Fail("version {} was written as committed a second time", *again);
}

void StoreObserver::FollowTimeline(const std::string& value) {
  const TimelineRecord before = std::exchange(timeline_, TimelineRecord());
  timeline_.ParseFromString(value);
  const bool ends_round =
      before.closing() && !timeline_.closing() && timeline_.round() == before.round();
  if (ends_round && smp::DecisionOf(timeline_.decision()).kind != DecisionKind::kFailed) {
    CheckHeeds(timeline_);
  }
}

// By the view that was written with it.
void StoreObserver::CheckHeeds(const TimelineRecord& decided) const {
  if (!decided.has_resize()) return;
  std::set<uint64_t> in;
  for (const Group& group : view_.groups()) in.insert(group.slots().begin(), group.slots().end());
  std::set<uint64_t> asking;
  for (const AskingRank& asked : decided.decision().asked()) asking.insert(asked.slot());
  for (const uint64_t slot : decided.resize().without()) {
    if (!in.contains(slot) || asking.contains(slot)) continue;
    world_.trace.Fail(
        "decision {}: node {} is in a group, and an order leaves it out, and no rank asks from it",
        decided.round(), slot);
  }
  const uint64_t most = std::max<uint64_t>(decided.resize().nodes(), asking.size());
  if (!decided.resize().has_nodes() || in.size() <= most) return;
  world_.trace.Fail(
      "decision {}: {} nodes are in groups, an order is for {}, and ranks ask from {}",
      decided.round(), in.size(), decided.resize().nodes(), asking.size());
}

// One bound for all: each record says more than the one before it, and not sooner than it may. What
// seeds the store puts back the record of the newest copy, whatever a store that went back was told
// before its nodes saw it: none of them has acted on that.
void StoreObserver::CountGivenUp(const std::string& value, bool seeds) {
  AbandonRecord record;
  record.ParseFromString(value);
  const AbandonRecord old = std::exchange(abandoned_, record);
  const bool says_mode = record.full_capture_from_timeline() != old.full_capture_from_timeline() ||
                         record.disagreement() != old.disagreement();
  disagreements_ += says_mode;
  for (const Version version : commits_) {
    if (!smp::IsAbandoned(record, version)) continue;
    world_.trace.Fail("version {} was committed and is given up", version);
  }
  const auto bound = [](const AbandonRecord& of) {
    return std::pair(of.timeline(), of.through_step());
  };
  if (seeds || (bound(record) == bound(old) && says_mode)) return;
  ++given_up_;
  if (bound(record) > bound(old)) return;
  world_.trace.Fail("step {}:{} was written as given up a second time", record.timeline(),
                    record.through_step());
}

}  // namespace unreft::sim
