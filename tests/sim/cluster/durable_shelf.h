// DurableShelf: storage that outlives all nodes of a simulated cluster, and the durable copies that
// the simulation has written to it.
#pragma once

#include <unreft/cluster.pb.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "recovery/timeline.h"
#include "tests/fakes/memory_cold_store.h"
#include "tests/fakes/subtree_cold_store.h"
#include "tests/sim/machine.h"

namespace unreft::sim {

class DurableShelf {
 public:
  static constexpr char kDirectory[] = "/copies";

  durable::ColdStore& store() { return store_; }
  // Of a directory that SEARCH has named.
  std::unique_ptr<durable::ColdStore> CopyAt(const std::string& directory);

  // Writes all slabs of the version that the machines have sealed; false if some rank's is not
  // whole in any, and nothing is left then.
  bool Write(Version version, uint64_t world, const TimelineRecord& timelines,
             const std::vector<Machine*>& machines);
  // Turns a byte of one file of the newest copy. Whether there is one.
  bool Damage(Random& random);

  // As an operator who is told that they are of several runs: takes away all but those of the run
  // that was written last. Whether there were several.
  bool LeaveOneRun();

  // The versions of complete copies that were not damaged.
  const std::map<Version, std::string>& copies() const { return copies_; }
  // Of these too whatever is not damaged can be restored, where memory has the rest.
  bool HasWritten(Version version) const { return versions_.contains(version); }

 private:
  MemoryColdStore store_;
  std::map<Version, std::string> copies_;  // the names of their directories
  std::set<Version> versions_;             // of all copies, also of those that were damaged
  // Of all that are there, in the order in which they were written: the name and the run.
  std::vector<std::pair<std::string, uint64_t>> runs_;
  uint64_t written_ = 0;
};

}  // namespace unreft::sim
