// RoundReading: what the nodes have read again of their slabs in a round of the leader's, before a
// version is decided on. Nothing of it outlives the round.
#pragma once

#include <unreft/cluster.pb.h>

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/ids.h"
#include "layout/manifest.h"
#include "smp/job/layout_check.h"

namespace unreft::smp {

// Single-threaded.
class RoundReading {
 public:
  // A process of a node: what it has found, the next one has not looked for.
  struct Life {
    NodeSlot slot;
    std::string incarnation;
    uint64_t session = 0;
    auto operator<=>(const Life&) const = default;
  };
  static Life LifeOf(NodeSlot slot, const NodeReport& report);

  // The round that is under way: of another one nothing has been read.
  void Follow(uint64_t round);
  uint64_t round() const { return round_; }

  void Begin(const Life& life, Version version) { under_way_.insert({version, life}); }
  void Fail(const Life& life, Version version) { under_way_.erase({version, life}); }
  void End(const Life& life, Version version);
  bool IsUnderWay(const Life& life, Version version) const {
    return under_way_.contains({version, life});
  }
  bool IsRead(const Life& life, Version version) const { return read_.contains({version, life}); }

  // Of a version that is not committed, as those who have read it told.
  void Keep(Version version, layout::SlotManifest manifest);
  const ManifestsByRank& ManifestsOf(Version version) const;

  // Its slabs do not fit together.
  void NoteMisfit(Version version) { misfits_.insert(version); }
  bool IsMisfit(Version version) const { return misfits_.contains(version); }

  // What was found last that did not verify, for people; empty when all did.
  void NoteProblem(std::string text) { last_problem_ = std::move(text); }
  const std::string& last_problem() const { return last_problem_; }

 private:
  uint64_t round_ = 0;
  std::set<std::pair<Version, Life>> read_;
  std::set<std::pair<Version, Life>> under_way_;
  std::map<Version, ManifestsByRank> manifests_;
  std::set<Version> misfits_;
  std::string last_problem_;
};

}  // namespace unreft::smp
