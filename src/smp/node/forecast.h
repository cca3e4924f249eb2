// Forecast: what ranks would restore of a version, and from where, by a description of its slabs.
// Of the ranks that are registered, or of those of a layout (docs/formats/layout_file.md), which
// may be on any node. Pure; each rank is planned for as it would be, by the planner of restores,
// with the slabs of its node first.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/tensor_spec.h"
#include "layout/job_layout.h"
#include "recovery/stored_tables.h"

namespace unreft::smp {

// Where the bytes of a slab are, for ranks of a node.
enum class SlabPlace { kHere, kPeer, kDecoded };

struct ForecastSlab {
  Rank rank;
  NodeSlot home;
  bool is_at_home = false;  // its home has it, and is there
  bool is_here = false;     // it is sealed on the node that makes the forecast
};

// May be handed to the work pool, which alone touches it while it computes.
class Forecast {
 public:
  struct Of {
    std::string job;
    NodeSlot node;  // that makes it
    uint64_t nodes = 1;
    Version version;
    uint64_t data_chunks = 1;  // of the largest group that the version is encoded in
  };

  explicit Forecast(Of of) : of_(std::move(of)) {}

  // One for each rank that stored the version.
  void AddSlab(const ForecastSlab& slab) { slabs_.emplace(slab.rank, slab); }
  // What they hold, under the numbers of their ranks.
  void SetStored(std::shared_ptr<const recovery::StoredTables> stored) {
    stored_ = std::move(stored);
  }
  // Of this node.
  void AddRegistered(Rank rank, uint64_t world, std::vector<TensorSpec> tensors);
  // In place of registered ranks: the text is read by Compute.
  void SetLayout(std::string text) { layout_ = std::move(text); }

  // For a pool. An error says why there is no forecast: what is wrong with the layout.
  absl::Status Compute();
  nlohmann::ordered_json ToJson() const;

 private:
  // Some names of several, and how many.
  struct Names {
    std::vector<std::string> first;
    size_t count = 0;
    std::string last;

    void Add(std::string_view name) { AddOnce(name, name); }
    // Not if `key` is that of the last one, as of several shards of a tensor.
    void AddOnce(std::string_view key, std::string_view text);
    std::string Text() const;
  };
  struct RankForecast {
    Rank rank;
    uint64_t node = 0;
    std::vector<TensorSpec> targets;

    size_t tensors = 0;  // by name
    Names not_stored;
    uint64_t bytes_from[3] = {0, 0, 0};  // by SlabPlace
    std::string problem;
  };

  absl::Status TakeLayout();
  void TakeRank(layout::RankLayout rank);
  void AddWanted(const TensorSpec& shard, RankForecast& rank, Names& other_kinds) const;
  void AddNamed(const TensorSpec& shard, const std::string& name, bool is_needed,
                RankForecast& rank, Names& other_kinds) const;
  void AddBeneath(const TensorSpec& shard, const std::string& prefix, RankForecast& rank) const;
  void FindUnwanted(const layout::JobLayout& layout);
  void Plan(RankForecast& rank) const;
  SlabPlace PlaceOf(const ForecastSlab& slab, uint64_t node) const;
  uint64_t source_world() const { return slabs_.size(); }

  const Of of_;
  uint64_t world_ = 0;
  std::map<Rank, ForecastSlab> slabs_;
  std::shared_ptr<const recovery::StoredTables> stored_;
  std::string layout_;
  std::vector<RankForecast> ranks_;
  // While it computes: of each stored name one shard.
  std::map<std::string_view, const TensorSpec*> kinds_;
  Names unwanted_;  // stored, and no rank of the layout restores them
};

}  // namespace unreft::smp
