#include "tests/sim/history.h"

#include <algorithm>

namespace unreft::sim {
namespace {

// From the daemon's reading of a slot to the decision that follows from it.
constexpr Duration kVerifyMax = std::chrono::milliseconds(200);

std::string Name(std::optional<Version> version) {
  return version ? fmt::format("{}", *version) : "none";
}

}  // namespace

void History::OnSnapshotStarted(Version version, Attempt attempt, uint64_t world) {
  worlds_[attempt] = world;
  const auto [it, is_new] = authors_.try_emplace(version, attempt);
  if (is_new) begun_[version] = trace_.now();
  if (is_new || it->second == attempt) return;
  trace_.Fail("version {} is named by attempt {} and again by attempt {}", version, it->second,
              attempt);
}

void History::OnCommitted(Version version, uint64_t world) {
  if (version == committed_) return;
  trace_.Add("committed {} of {} ranks", version, world);
  if (!authors_.contains(version)) trace_.Fail("{} was committed, nobody trained it", version);
  if (committed_ && version < *committed_) {
    trace_.Fail("{} was committed after {}", version, *committed_);
  }
  committed_ = version;
  given_up_by_.reset();
  fresh_start_asked_.reset();
  ++commits_;
}

void History::OnDecided(Timeline timeline, Version parent, std::optional<Version> newest_whole,
                        Duration now, bool excused) {
  ++decisions_;
  trace_.Add("decided: restore {}, timeline {}; newest whole {}", parent, timeline,
             Name(newest_whole));
  const Timeline newest = newest_;
  // Of one number there are several where a job has lost all its records: none is before another.
  if (NumberOf(timeline) < NumberOf(newest)) {
    trace_.Fail("timeline {} was opened after {}", timeline, newest);
  }
  if (timeline == newest) {
    if (parents_[timeline] != parent) {
      trace_.Fail("timeline {} stands on {} and on {}", timeline, parents_[timeline], parent);
    }
    const auto trained = authors_.lower_bound(Version{timeline, Step{0}});
    if (trained != authors_.end()) {
      trace_.Fail("timeline {} was given again after the capture of {}", timeline, trained->first);
    }
  }
  if (parent == Version{}) {
    if (committed_) trace_.Fail("nothing stored, it says, but {} was committed", *committed_);
    if (newest_whole) trace_.Fail("nothing stored, it says, but {} is whole", *newest_whole);
  } else {
    CheckNewest(parent, newest_whole, now);
  }
  if (committed_ && parent < *committed_ && !excused && !damaged_.contains(*committed_)) {
    trace_.Fail("{} was committed, {} is restored, and no fault explains it", *committed_, parent);
  }
  // Whatever happened to it before, it was there.
  if (newest_whole == parent) damaged_.erase(parent);
  Open(timeline, parent);
  if (parent != Version{}) committed_ = parent;
}

void History::CheckNewest(Version restored, std::optional<Version> newest_whole, Duration now) {
  if (newest_whole == restored) return;
  // It may have rotted since the daemon read it.
  const auto damaged = damaged_.find(restored);
  const bool just_now = damaged != damaged_.end() && now - damaged->second < kVerifyMax;
  if (just_now && (!newest_whole || *newest_whole < restored)) return;
  trace_.Fail("{} is to be restored, the newest whole version is {}", restored, Name(newest_whole));
}

void History::OnLost(Attempt told, bool excused) {
  lost_.insert(told_as_[told].begin(), told_as_[told].end());
  if (!committed_ || excused) return;
  trace_.Fail("{} was committed and is lost, and no fault explains it", *committed_);
}

void History::OnUnrecoverable(Attempt attempt, std::optional<Version> newest_whole) {
  trace_.Add("unrecoverable, it says; newest whole {}", Name(newest_whole));
  // Heard late: what is whole or committed by now may be of those who began anew since.
  if (told_.upper_bound(attempt) != told_.end()) return;
  if (newest_whole) trace_.Fail("unrecoverable, it says, but {} is whole", *newest_whole);
  // A node may hear of the decision after somebody has given up what it was about.
  if (!committed_ && (!given_up_by_ || attempt > *given_up_by_)) {
    trace_.Fail("unrecoverable, it says, but nothing was committed");
  }
  if (committed_ && !lost_.contains(attempt) && !damaged_.contains(*committed_)) {
    trace_.Fail("{} was committed and is lost, and no fault explains it", *committed_);
  }
}

void History::OnToldRestored(Rank rank, Attempt attempt, Timeline timeline, Version version,
                             uint64_t source_world) {
  trace_.Add("rank {} of attempt {} is told {} on timeline {}", rank, attempt, version, timeline);
  const Told told{timeline, version};
  const auto [it, is_new] = told_.try_emplace(attempt, told);
  if (!is_new && it->second != told) {
    trace_.Fail("attempt {}: rank {} restores {} on timeline {}, another {} on {}", attempt, rank,
                version, timeline, it->second.version, it->second.timeline);
  }
  if (const auto saved_by = WorldOf(version); saved_by && *saved_by != source_world) {
    trace_.Fail("rank {} is told that {} ranks saved {}, which {} did", rank, source_world, version,
                *saved_by);
  }
  const auto parent = parents_.find(timeline);
  if (parent == parents_.end() || parent->second != version) {
    trace_.Fail("rank {} restores {} on timeline {}, which was not decided", rank, version,
                timeline);
  }
  ++restores_;
}

void History::OnFreshStart(Timeline timeline) {
  trace_.Add("fresh start declared: timeline {}", timeline);
  const bool is_ordered = fresh_start_until_ && trace_.now() <= *fresh_start_until_;
  if (!fresh_start_asked_ && !is_ordered) {
    trace_.Fail("a fresh start gives up {}, and nobody has asked for it", Name(committed_));
  }
  Open(timeline, Version{});
  if (committed_) given_up_by_ = fresh_start_asked_.value_or(newest_attempt_);
  committed_.reset();
}

void History::OnReboot(std::optional<Version> commit_on_disk) {
  trace_.Add("rebooted; the disk knows of commit {}", Name(commit_on_disk));
  // Nothing that was sealed is left, so its names may come again if the disk has lost them.
  ForgetNames();
  committed_ = commit_on_disk;
  if (committed_) damaged_[*committed_] = Duration{};
}

void History::OnForgotten(Version version) {
  trace_.Add("nobody remembers the commit of {}", version);
  committed_.reset();
}

void History::OnAllForgotten() {
  trace_.Add("nobody remembers anything");
  ForgetNames();
}

void History::ForgetNames() {
  authors_.clear();
  begun_.clear();
  parents_.clear();
  newest_ = Timeline{};
  committed_.reset();
  damaged_.clear();
}

void History::Open(Timeline timeline, Version parent) {
  parents_[timeline] = parent;
  newest_ = timeline;
}

std::optional<Author> History::AuthorOf(Version version, Rank rank) const {
  const auto it = authors_.find(version);
  if (it == authors_.end()) return std::nullopt;
  return Author{version, it->second, SaltOf(it->second, rank)};
}

std::optional<Duration> History::BegunAt(Version version) const {
  const auto it = begun_.find(version);
  if (it == begun_.end()) return std::nullopt;
  return it->second;
}

uint64_t History::SaltOf(Attempt attempt, Rank rank) const {
  return astray_.contains({attempt, rank}) ? rank.value + 1 : 0;
}

bool History::IsAstray(Version version) const {
  const auto author = authors_.find(version);
  return author != authors_.end() && std::ranges::any_of(astray_, [&](const auto& rank) {
           return rank.first == author->second;
         });
}

std::optional<uint64_t> History::WorldOf(Version version) const {
  const auto author = authors_.find(version);
  if (author == authors_.end() || !worlds_.contains(author->second)) return std::nullopt;
  return worlds_.at(author->second);
}

std::vector<Author> History::AuthorsOf(Version version) const {
  std::vector<Author> authors;
  for (uint64_t rank = 0; rank < WorldOf(version).value_or(0); ++rank) {
    const std::optional<Author> author = AuthorOf(version, Rank{rank});
    if (author && std::ranges::find(authors, *author) == authors.end()) authors.push_back(*author);
  }
  return authors;
}

bool History::IsLive(Version version) const {
  Timeline timeline = newest_;
  Step last{UINT64_MAX};
  while (timeline.value != 0) {
    if (version.timeline == timeline) return version.step <= last;
    const auto parent = parents_.find(timeline);
    if (parent == parents_.end()) return false;
    timeline = parent->second.timeline;
    last = parent->second.step;
  }
  return false;
}

}  // namespace unreft::sim
