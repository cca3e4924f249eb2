#include "base/run_owner.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "base/segment_store.h"

namespace unreft {

std::optional<RunOwner> ReadRunOwner(const std::string& run_dir) {
  std::ifstream file(fmt::format("{}/{}", run_dir, kRunOwnerFile));
  RunOwner owner;
  std::string job;
  std::string node;
  std::string inject;
  const bool is_read =
      bool(file >> job >> owner.job >> node >> owner.node >> inject >> owner.allows_inject);
  const bool is_whole = is_read && job == "job" && node == "node" && inject == "allow_inject";
  if (!is_whole || !CheckJobName(owner.job).ok()) return std::nullopt;
  return owner;
}

absl::Status WriteRunOwner(const std::string& run_dir, const RunOwner& owner) {
  const std::string path = fmt::format("{}/{}", run_dir, kRunOwnerFile);
  const std::string draft = path + ".new";
  std::ofstream file(draft);
  file << fmt::format("job {}\nnode {}\nallow_inject {}\n", owner.job, owner.node,
                      owner.allows_inject ? 1 : 0);
  file.close();
  if (file && std::rename(draft.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  std::remove(draft.c_str());
  return absl::ErrnoToStatus(error, "write " + path);
}

}  // namespace unreft
