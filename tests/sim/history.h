// History: what really happened in a simulated job, and the rules that it must keep.
//
// It knows who trained to each version, what was committed, decided and restored, all seen from
// outside, and fails the trace when
//   * a version's name is used for two contents, or timelines do not grow (docs/protocol.md, rule
//   1),
//   * the decision is not the newest version that memory holds whole and on the chain (rule 21),
//   * "nothing stored" is said although something was committed (rule 22), or something is given up
//     by a fresh start that nobody has ordered,
//   * a decision fails although a version is whole, or loses one without a fault that explains it,
//   * ranks of one attempt restore different versions, or one gets other bytes than were trained,
//   * a rank is told that another number of ranks saved a version than did.
// Single-threaded.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "tests/sim/model.h"
#include "tests/sim/trace.h"

namespace unreft::sim {

class History {
 public:
  explicit History(Trace& trace) : trace_(trace) {}

  // --- what happens ---
  void OnSnapshotStarted(Version version, Attempt attempt, uint64_t world);
  // From its first step on the rank trains other bytes than its replicas.
  void OnAstray(Attempt attempt, Rank rank) { astray_.insert({attempt, rank}); }
  void OnCommitted(Version version, uint64_t world);
  // The daemon opened `timeline`, or confirmed it, on top of `parent` (0:0: nothing stored);
  // `newest_whole` is what memory held. `excused`: so much is gone by faults that this decision may
  // step back; the next one needs an excuse of its own.
  void OnDecided(Timeline timeline, Version parent, std::optional<Version> newest_whole,
                 Duration now, bool excused = false);
  // Whether that decision is heard of for the first time, in all lives of the daemon.
  bool IsNewDecision(const std::string& record) { return decisions_heard_.insert(record).second; }
  // It was decided, for an attempt that calls itself so, that what was committed is lost.
  void OnLost(Attempt told, bool excused);
  // A rank of the attempt was told that no version is whole.
  void OnUnrecoverable(Attempt attempt, std::optional<Version> newest_whole);
  // A rank was told, and how many have saved it; 0 for a fresh start. It looks at the bytes.
  void OnToldRestored(Rank rank, Attempt attempt, Timeline timeline, Version version,
                      uint64_t source_world);
  // Somebody orders a fresh start, when that attempt was the last. The order holds, however often
  // it is carried out, until something is committed again.
  void OnFreshStartAsked(Attempt attempt) { fresh_start_asked_ = attempt; }
  // Somebody orders one while the job may train: it may be carried out until then, whatever is
  // committed meanwhile.
  void OnFreshStartOrdered(Duration until) { fresh_start_until_ = until; }
  // It calls itself `told`, as others may have done.
  void OnAttempt(Attempt attempt, Attempt told) {
    newest_attempt_ = attempt;
    told_as_[told].insert(attempt);
  }
  void OnFreshStart(Timeline timeline);
  // The host rebooted; its disk knows of that commit, which may be an older one (records are
  // written behind, and may fail).
  void OnReboot(std::optional<Version> commit_on_disk);
  // The meta store was lost before more nodes had heard of that commit than were destroyed.
  void OnForgotten(Version version);
  // Nobody remembers anything of the job: its names may come again.
  void OnAllForgotten();
  // A fault took part of what is sealed of that version.
  void OnDamaged(Version version, Duration now) { damaged_[version] = now; }

  // --- what is known ---
  std::optional<Author> AuthorOf(Version version, Rank rank) const;
  // Of a rank and attempt: 0 unless it has gone astray.
  uint64_t SaltOf(Attempt attempt, Rank rank) const;
  // Whether some rank of the attempt that captured it may hold other bytes than its replicas.
  bool IsAstray(Version version) const;
  // Those of all ranks that captured it, but for the rank number: which of them a byte is from
  // nobody can say that only sees where it is now.
  std::vector<Author> AuthorsOf(Version version) const;
  // How many ranks captured it.
  std::optional<uint64_t> WorldOf(Version version) const;
  bool IsLive(Version version) const;
  // When the first rank began to capture it.
  std::optional<Duration> BegunAt(Version version) const;
  std::optional<Version> committed() const { return committed_; }
  // 0: none was opened.
  Timeline newest_timeline() const { return newest_; }
  uint64_t commits() const { return commits_; }
  uint64_t restores() const { return restores_; }
  uint64_t decisions() const { return decisions_; }

 private:
  struct Told {
    Timeline timeline;
    Version version;
    friend bool operator==(const Told&, const Told&) = default;
  };

  // Of versions and timelines, and what is known by them.
  void ForgetNames();
  void Open(Timeline timeline, Version parent);
  void CheckNewest(Version restored, std::optional<Version> newest_whole, Duration now);

  Trace& trace_;
  std::map<Version, Attempt> authors_;
  std::map<Version, Duration> begun_;
  std::map<Attempt, uint64_t> worlds_;
  std::set<std::pair<Attempt, Rank>> astray_;
  std::set<std::string> decisions_heard_;
  std::map<Timeline, Version> parents_;
  Timeline newest_;  // opened last
  std::map<Attempt, Told> told_;
  std::map<Attempt, std::set<Attempt>> told_as_;  // by what they call themselves
  // Of which it was decided, and looked at, that what was committed is lost.
  std::set<Attempt> lost_;
  std::optional<Version> committed_;
  std::optional<Attempt> fresh_start_asked_;  // and nothing was committed since
  std::optional<Duration> fresh_start_until_;
  Attempt newest_attempt_;
  // The last attempt that may hear of what a fresh start gave up; nothing was committed since.
  std::optional<Attempt> given_up_by_;
  std::map<Version, Duration> damaged_;  // and when, the last time
  uint64_t commits_ = 0;
  uint64_t restores_ = 0;
  uint64_t decisions_ = 0;
};

}  // namespace unreft::sim
