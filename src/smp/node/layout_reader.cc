#include "smp/node/layout_reader.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "layout/tensor_table.h"

namespace unreft::smp {
namespace {

using Json = nlohmann::json;
using layout::JobLayout;
using layout::RankLayout;

constexpr int kDepthMax = 8;
constexpr size_t kShownBytesMax = 60;  // of what was found, in a message
// Of all ranks together: a spec takes some 50 times as many bytes as the shortest that it is read
// from.
constexpr size_t kShardsMax = size_t{1} << 22;

// Thrown nowhere: the first thing that is wrong, with its place.
class Reader {
 public:
  absl::Status status() const { return status_; }

  void Refuse(const std::string& where, std::string_view needed, const Json& found) {
    if (!status_.ok()) return;
    const std::string text = found.dump(-1, ' ', false, Json::error_handler_t::replace);
    status_ = absl::InvalidArgumentError(
        fmt::format("{}: needed {}, found {}", where, needed, CleanText(text, kShownBytesMax)));
  }

  const Json& Member(const Json& object, const char* key, const std::string& where) {
    static const Json kNothing;
    const auto found = object.find(key);
    if (found != object.end()) return *found;
    if (status_.ok()) status_ = absl::InvalidArgumentError(fmt::format("{} lacks", where));
    return kNothing;
  }
  uint64_t Number(const Json& json, const std::string& where) {
    if (json.is_number_unsigned()) return json.get<uint64_t>();
    Refuse(where, "a whole number of 0 or more", json);
    return 0;
  }
  bool Bool(const Json& json, const std::string& where) {
    if (json.is_boolean()) return json.get<bool>();
    Refuse(where, "true or false", json);
    return false;
  }
  std::string Text(const Json& json, const std::string& where) {
    if (json.is_string()) return json.get<std::string>();
    Refuse(where, "a string", json);
    return "";
  }
  // An empty one if it is none.
  const Json& List(const Json& json, const std::string& where) {
    static const Json kNone = Json::array();
    if (json.is_array()) return json;
    Refuse(where, "a list", json);
    return kNone;
  }
  std::vector<uint64_t> Numbers(const Json& json, const std::string& where) {
    std::vector<uint64_t> numbers;
    for (const Json& number : List(json, where)) {
      if (numbers.size() > layout::kDimensionsMax) {
        Refuse(where, fmt::format("at most {} numbers", layout::kDimensionsMax), json);
        break;
      }
      numbers.push_back(Number(number, where));
    }
    return numbers;
  }

  Dtype DtypeOf(const Json& json, const std::string& where) {
    const std::string name = Text(json, where);
    for (unsigned number = 1; number <= std::numeric_limits<uint8_t>::max(); ++number) {
      const auto dtype = static_cast<Dtype>(number);
      if (DtypeBytes(dtype) > 0 && DtypeName(dtype) == name) return dtype;
    }
    Refuse(where, "a dtype, like \"float32\"", json);
    return Dtype::kFloat32;
  }

  TensorSpec Tensor(const Json& json, const std::string& where) {
    TensorSpec spec;
    if (List(json, where).size() != 3) {
      Refuse(where, "[name, dtype, global shape]", json);
      return spec;
    }
    spec.name = Text(json[0], where);
    spec.dtype = DtypeOf(json[1], where);
    spec.global_shape = Numbers(json[2], where);
    spec.offset.assign(spec.global_shape.size(), 0);
    spec.extent = spec.global_shape;
    return spec;
  }

  TensorSpec Shard(const Json& json, const std::vector<TensorSpec>& tensors,
                   const std::string& where) {
    const size_t parts = List(json, where).size();
    if (parts != 1 && parts != 3) {
      Refuse(where, "[tensor] or [tensor, offset, extent]", json);
      return {};
    }
    const uint64_t number = Number(json[0], where);
    if (number >= tensors.size()) {
      Refuse(where, fmt::format("the number of one of {} tensors", tensors.size()), json[0]);
      return {};
    }
    is_used_.resize(tensors.size());
    is_used_[number] = true;
    TensorSpec spec = tensors[number];
    if (parts == 3) {
      spec.offset = Numbers(json[1], where);
      spec.extent = Numbers(json[2], where);
    }
    return spec;
  }

  // Marks those of the tensors that the member names, if it is there.
  void AllowShapeMismatch(const Json& json, std::vector<TensorSpec>& tensors) {
    const std::string where = "allow_shape_mismatch";
    if (!json.contains(where)) return;
    for (const Json& item : List(json.at(where), where)) {
      const uint64_t number = Number(item, where);
      if (number < tensors.size()) {
        tensors[number].allow_shape_mismatch = true;
      } else {
        Refuse(where, fmt::format("the number of one of {} tensors", tensors.size()), item);
      }
      if (!status_.ok()) return;
    }
  }

  // Of these tensors: those that no shard was of.
  std::vector<TensorSpec> Others(std::vector<TensorSpec> tensors) {
    is_used_.resize(tensors.size());
    size_t number = 0;
    std::erase_if(tensors, [&](const TensorSpec&) { return is_used_[number++]; });
    return tensors;
  }

  RankLayout RankOf(const Json& json, const std::vector<TensorSpec>& tensors,
                    const std::string& where) {
    RankLayout rank;
    if (!json.is_object()) {
      Refuse(where, "an object", json);
      return rank;
    }
    rank.rank = Rank{Number(Member(json, "rank", where + ".rank"), where + ".rank")};
    rank.node = Number(Member(json, "node", where + ".node"), where + ".node");
    rank.any_world = Bool(Member(json, "any_world", where + ".any_world"), where + ".any_world");
    const std::string shards = where + ".shards";
    for (const Json& shard : List(Member(json, "shards", shards), shards)) {
      if (++shards_ > kShardsMax) {
        Refuse(shards, fmt::format("at most {} shards of all ranks", kShardsMax), shards_);
      }
      if (!status_.ok()) break;
      rank.shards.push_back(
          Shard(shard, tensors, fmt::format("{}[{}]", shards, rank.shards.size())));
    }
    return rank;
  }

 private:
  absl::Status status_;
  size_t shards_ = 0;
  std::vector<bool> is_used_;  // by the number of a tensor, by some shard
};

absl::Status CheckFormat(Reader& reader, const Json& json) {
  const Json& format = reader.Member(json, "unreft_layout", "unreft_layout");
  if (!reader.status().ok()) {
    return absl::InvalidArgumentError("it is no layout: needed \"unreft_layout\", found none");
  }
  if (!format.is_object()) reader.Refuse("unreft_layout", "an object", format);
  if (!reader.status().ok()) return reader.status();
  const uint64_t written = reader.Number(reader.Member(format, "format", "format"), "format");
  const uint64_t least =
      reader.Number(reader.Member(format, "min_reader", "min_reader"), "min_reader");
  if (!reader.status().ok() || least <= layout::kLayoutFormat) return reader.status();
  return absl::FailedPreconditionError(fmt::format(
      "it has format {} and is for readers of format {} or later, this release reads {}", written,
      least, layout::kLayoutFormat));
}

}  // namespace

absl::StatusOr<JobLayout> ReadLayout(std::string_view text) {
  bool is_shallow = true;
  const auto look = [&is_shallow](int depth, Json::parse_event_t, Json&) {
    is_shallow = is_shallow && depth <= kDepthMax;
    return is_shallow;
  };
  const Json json = Json::parse(text, look, /*allow_exceptions=*/false);
  if (!is_shallow || !json.is_object()) {
    return absl::InvalidArgumentError(
        fmt::format("it is no layout: its {} bytes are no JSON object{}", text.size(),
                    is_shallow ? "" : fmt::format(" of at most {} levels", kDepthMax)));
  }
  Reader reader;
  if (absl::Status status = CheckFormat(reader, json); !status.ok()) return status;
  JobLayout read;
  read.job = reader.Text(reader.Member(json, "job", "job"), "job");
  read.world = reader.Number(reader.Member(json, "world", "world"), "world");
  std::vector<TensorSpec> tensors;
  for (const Json& tensor : reader.List(reader.Member(json, "tensors", "tensors"), "tensors")) {
    if (!reader.status().ok()) break;
    tensors.push_back(reader.Tensor(tensor, fmt::format("tensors[{}]", tensors.size())));
  }
  reader.AllowShapeMismatch(json, tensors);
  for (const Json& rank : reader.List(reader.Member(json, "ranks", "ranks"), "ranks")) {
    if (!reader.status().ok()) break;
    read.ranks.push_back(reader.RankOf(rank, tensors, fmt::format("ranks[{}]", read.ranks.size())));
  }
  if (!reader.status().ok()) return reader.status();
  read.others = reader.Others(std::move(tensors));
  if (absl::Status status = layout::CheckLayout(read); !status.ok()) return status;
  return read;
}

}  // namespace unreft::smp
