// The names under which a durable copy has what ranks stored: those that `get_state_dict` of
// PyTorch gives, so that a program loads the copy as one that `dcp.save` has written.
//
//   stored                            key                        path in the nested dict
//   model/layer.weight                model.layer.weight         model, layer.weight
//   rank0/buffer/norm.mean            model.norm.mean            model, norm.mean
//   optim/layer.weight/exp_avg        optim.state.layer.weight.exp_avg
//                                                                optim, state, layer.weight,
//                                                                exp_avg
//   rank3/buffer/norm.mean            unreft.rank3.model.norm.mean
//                                                                unreft, rank3, model, norm.mean
//   anything else                     the same                   the same
//
// What each rank, or each set of ranks, stored as its own has one plain key for all of them: the
// first one's, unless a tensor of all ranks has that key. Pure.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "durable/dcp_metadata.h"

namespace unreft::durable {

struct CopyName {
  std::string key;
  std::vector<PathElement> path;
  friend bool operator==(const CopyName&, const CopyName&) = default;
};

// From a beginning of keys to what stands there instead; the longest that fits counts.
using KeyMap = std::vector<std::pair<std::string, std::string>>;

// Of "FROM=TO". InvalidArgument, naming the text, without '=' or with nothing before it.
absl::StatusOr<std::pair<std::string, std::string>> ParseKeyMapping(std::string_view text);

// What a name that `unreft.torch` gives says of its tensor.
enum class ModelPart { kNone, kParameter, kBuffer };
ModelPart ModelPartOf(std::string_view stored);
// The parameter of a name of that kind, or whose optimizer state or master copy another is of.
std::optional<std::string> ParameterOf(std::string_view stored);

// Knows all names of a version before it is asked for any.
class CopyNames {
 public:
  explicit CopyNames(KeyMap map) : map_(std::move(map)) {}

  // A logical name that some rank stored. Any order, any number of times.
  void Add(std::string_view stored);

  // Of an entry of a state dict: it keeps its name, at `path` if that has it, joined by ".".
  void Place(const std::string& name, const std::vector<PathElement>& path);

  // Of a name that was added, or placed.
  CopyName Of(std::string_view stored) const;

  // Whether its key, before it is mapped, is one that no rank or set is named in. Of a name that
  // was added.
  bool IsPlain(std::string_view stored) const;

  // Of what is no tensor: its place in the nested dict.
  CopyName At(std::vector<PathElement> path) const;

 private:
  KeyMap map_;
  // Of a plain key: who has it, and its set. A tensor of all ranks, of no set, is before any other.
  absl::flat_hash_map<std::string, std::pair<uint64_t, std::string>> first_;
  std::map<std::string, std::vector<PathElement>, std::less<>> placed_;
};

}  // namespace unreft::durable
