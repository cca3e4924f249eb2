#include "tools/cli/dry_run.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "tools/cli/layout_files.h"
#include "tools/cli/table.h"

namespace unreft::cli {
namespace {

// Where the ranks write: beside the file, and gone with this.
class RanksDirectory {
 public:
  static absl::StatusOr<RanksDirectory> Make(const std::string& file) {
    std::string path = std::filesystem::absolute(file).string() + ".ranks-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) return absl::ErrnoToStatus(errno, "make " + path);
    return RanksDirectory(std::move(path));
  }
  RanksDirectory(RanksDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  RanksDirectory& operator=(RanksDirectory&&) = delete;
  ~RanksDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  bool HasWritten(uint32_t rank) const {
    std::error_code error;
    return std::filesystem::exists(path_ + "/" + layout::RankFileName(Rank{rank}), error);
  }

 private:
  explicit RanksDirectory(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace

int RunDry(const Context& context, LaunchOptions launch, const std::vector<uint64_t>& nodes,
           const std::string& file) {
  const absl::StatusOr<RanksDirectory> directory = RanksDirectory::Make(file);
  if (!directory.ok()) return Fail(context, directory.status());
  launch.max_restarts = 0;
  launch.before_restart = nullptr;
  launch.group.environment.emplace_back("UNREFT_DRY_RUN", directory->path());
  launch.group.rank_environment.resize(launch.group.ranks);
  for (uint32_t rank = 0; rank < launch.group.ranks; ++rank) {
    launch.group.rank_environment[rank].emplace_back("UNREFT_NODE", std::to_string(nodes[rank]));
  }
  launch.group.has_done = [&directory](uint32_t rank) { return directory->HasWritten(rank); };
  const absl::StatusOr<int> code = Launch(launch);
  if (!code.ok()) {
    const int failed = Fail(context, code.status());
    return absl::IsNotFound(code.status()) ? kExitCannotRun : failed;
  }
  if (*code != 0) return *code;
  const absl::StatusOr<layout::JobLayout> layout = ReadLayouts(directory->path());
  if (!layout.ok()) {
    return Fail(context,
                absl::Status(layout.status().code(),
                             fmt::format("dry run: {}", std::string(layout.status().message()))));
  }
  if (absl::Status status = WriteLayout(file, *layout); !status.ok()) return Fail(context, status);
  std::set<std::string_view> tensors;
  size_t shards = 0;
  for (const layout::RankLayout& rank : layout->ranks) {
    for (const TensorSpec& shard : rank.shards) tensors.insert(shard.name);
    shards += rank.shards.size();
  }
  Print(context,
        {{"job", layout->job},
         {"file", file},
         {"world", layout->world},
         {"tensors", tensors.size()},
         {"shards", shards}},
        fmt::format("{}: the layout of {} ranks of job {}: {} of {}\n", file, layout->world,
                    layout->job, Count(shards, "shard"), Count(tensors.size(), "tensor")));
  return kExitOk;
}

}  // namespace unreft::cli
