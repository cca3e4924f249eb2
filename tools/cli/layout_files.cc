#include "tools/cli/layout_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "smp/node/layout_reader.h"

namespace unreft::cli {
namespace {

using layout::JobLayout;

constexpr uintmax_t kFileBytesMax = uintmax_t{1} << 30;

absl::Status About(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", path, std::string(status.message())));
}

absl::StatusOr<JobLayout> ReadFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(fmt::format("{}: there is no such file", path));
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (!error && bytes > kFileBytesMax) {
    return absl::InvalidArgumentError(
        fmt::format("{}: needed at most {} bytes, found {}", path, kFileBytesMax, bytes));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad() || !file.is_open()) return absl::ErrnoToStatus(errno, "read " + path);
  absl::StatusOr<JobLayout> layout = smp::ReadLayout(text);
  if (!layout.ok()) return About(path, layout.status());
  return layout;
}

absl::Status Join(JobLayout& whole, JobLayout part) {
  if (whole.ranks.empty()) {
    whole = std::move(part);
    return absl::OkStatus();
  }
  if (part.job != whole.job || part.world != whole.world) {
    return absl::InvalidArgumentError(
        fmt::format("needed one job and world, found rank {} of job '{}' with {} ranks and rank {} "
                    "of job '{}' with {}",
                    whole.ranks.front().rank, whole.job, whole.world, part.ranks.front().rank,
                    part.job, part.world));
  }
  std::ranges::move(part.ranks, std::back_inserter(whole.ranks));
  return absl::OkStatus();
}

absl::StatusOr<JobLayout> ReadDirectory(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("rank-") && name.ends_with(".json")) files.push_back(entry.path());
  }
  if (error) return absl::ErrnoToStatus(error.value(), "read " + path);
  if (files.empty()) {
    return absl::NotFoundError(fmt::format(
        "{}: no rank has written its layout: none has called restore or register", path));
  }
  std::ranges::sort(files);
  JobLayout whole;
  for (const std::string& file : files) {
    absl::StatusOr<JobLayout> part = ReadFile(file);
    if (!part.ok()) return part.status();
    if (absl::Status status = Join(whole, *std::move(part)); !status.ok()) {
      return About(path, status);
    }
  }
  std::ranges::sort(whole.ranks, {}, [](const layout::RankLayout& rank) { return rank.rank; });
  if (absl::Status status = layout::CheckLayout(whole); !status.ok()) return About(path, status);
  return whole;
}

}  // namespace

absl::StatusOr<JobLayout> ReadLayouts(const std::string& path) {
  std::error_code error;
  absl::StatusOr<JobLayout> layout =
      std::filesystem::is_directory(path, error) ? ReadDirectory(path) : ReadFile(path);
  if (!layout.ok()) return layout.status();
  if (absl::Status status = layout::CheckAllThere(*layout); !status.ok()) {
    return About(path, status);
  }
  return layout;
}

absl::Status WriteLayout(const std::string& path, const JobLayout& layout) {
  const std::string draft = path + ".new";
  errno = 0;
  std::ofstream file(draft, std::ios::binary | std::ios::trunc);
  file << layout::ToJson(layout) << '\n';
  file.close();
  if (file && std::rename(draft.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno != 0 ? errno : EIO;
  std::remove(draft.c_str());
  return absl::ErrnoToStatus(error, "write " + path);
}

}  // namespace unreft::cli
