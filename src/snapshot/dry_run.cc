#include "snapshot/dry_run.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <utility>

#include "layout/job_layout.h"
#include "snapshot/environment.h"
#include "unreft/c.h"

namespace unreft::snapshot {
namespace {

absl::Status WriteFile(const std::string& path, const std::string& text) {
  const std::string draft = path + ".new";
  errno = 0;
  std::ofstream file(draft, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file && std::rename(draft.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno != 0 ? errno : EIO;
  std::remove(draft.c_str());
  return absl::ErrnoToStatus(error, fmt::format("dry run: write {}", path));
}

}  // namespace

std::string DryRunDirectory() { return EnvironmentText({"UNREFT_DRY_RUN"}, ""); }

absl::StatusOr<std::unique_ptr<DryRun>> DryRun::Begin(const ClientIdentity& identity,
                                                      bool any_world) {
  // As the daemon beside it is told, or else of the launchers that start an agent on each host.
  const auto node = EnvironmentNumber({"UNREFT_NODE", "GROUP_RANK", "SLURM_NODEID"}, 0);
  if (!node.ok()) return node.status();
  return std::unique_ptr<DryRun>(new DryRun(identity, any_world, static_cast<uint64_t>(*node)));
}

absl::Status DryRun::Write(const GivenTensors& tensors) {
  if (is_written_) return Ended();
  layout::JobLayout layout{.job = identity_.job, .world = identity_.world};
  layout.ranks.push_back({.rank = identity_.rank,
                          .node = node_,
                          .any_world = any_world_,
                          .shards = SpecsOf(tensors.shards)});
  if (absl::Status status = layout::CheckLayout(layout); !status.ok()) return status;
  const std::string path =
      fmt::format("{}/{}", DryRunDirectory(), layout::RankFileName(identity_.rank));
  if (absl::Status status = WriteFile(path, layout::ToJson(layout)); !status.ok()) return status;
  tensors_ = tensors.ends.size();
  is_written_ = true;
  return Ended();
}

absl::Status DryRun::Ended() const {
  const std::string what = is_written_
                               ? fmt::format("has written its layout, {} tensors", tensors_)
                               : std::string("can do nothing before it has named its tensors");
  return {static_cast<absl::StatusCode>(UNREFT_DRY_RUN),
          fmt::format("dry run: rank {} of {} {}: nothing is restored, and the process is to end",
                      identity_.rank, identity_.world, what)};
}

}  // namespace unreft::snapshot
