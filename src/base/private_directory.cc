#include "base/private_directory.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <deque>
#include <filesystem>

#include "base/check.h"

namespace unreft {
namespace {

constexpr int kLinksMax = 40;  // as the kernel's

absl::Status Refuse(const std::string& path, const struct stat& found, const char* needed) {
  return absl::PermissionDeniedError(fmt::format(
      "{} belongs to user {} with mode {:04o}; needed {}, or others could put what they like in "
      "its place: choose another --run-dir (UNREFT_RUN_DIR), or set XDG_RUNTIME_DIR",
      path, found.st_uid, found.st_mode & 07777, needed));
}

bool IsOursOrRoots(const struct stat& found) {
  return found.st_uid == geteuid() || found.st_uid == 0;
}

// Goes down from the root, and follows links itself.
class Walk {
 public:
  Walk(const std::string& path, bool make) : path_(path), make_(make) { Push(path); }

  absl::Status Run() {
    struct stat found {};
    if (lstat("/", &found) != 0) return absl::ErrnoToStatus(errno, "look at /");
    while (true) {
      if (absl::Status status = CheckOnTheWay(found); !status.ok()) return status;
      if (parts_.empty()) return CheckLast(found);
      if (absl::Status status = Step(found); !status.ok()) return status;
    }
  }

 private:
  void Push(const std::filesystem::path& path) {
    auto before = parts_.begin();
    for (const auto& part : path.relative_path()) {
      if (part.empty() || part == ".") continue;
      before = std::next(parts_.insert(before, part.string()));
    }
  }

  absl::Status Step(struct stat& found) {
    const std::string part = std::move(parts_.front());
    parts_.pop_front();
    const std::string next = part == ".." ? at_.parent_path().string() : (at_ / part).string();
    if (lstat(next.c_str(), &found) != 0) {
      if (errno != ENOENT) return absl::ErrnoToStatus(errno, "look at " + next);
      if (!make_) return absl::NotFoundError(next + " does not exist");
      if (mkdir(next.c_str(), 0700) != 0 && errno != EEXIST) {
        return absl::ErrnoToStatus(errno, "make directory " + next);
      }
      if (lstat(next.c_str(), &found) != 0) return absl::ErrnoToStatus(errno, "look at " + next);
    }
    if (S_ISLNK(found.st_mode)) return Follow(next, found);
    if (!S_ISDIR(found.st_mode)) return absl::AlreadyExistsError(next + " is not a directory");
    at_ = next;
    return absl::OkStatus();
  }

  absl::Status Follow(const std::string& link, struct stat& found) {
    if (!IsOursOrRoots(found)) {
      return Refuse(link, found, "a directory, or a symbolic link of this user's or of root's");
    }
    if (++links_ > kLinksMax) return absl::ErrnoToStatus(ELOOP, path_);
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(link, error);
    if (error) return absl::ErrnoToStatus(error.value(), "read link " + link);
    if (target.is_absolute()) at_ = "/";
    Push(target);
    // What the link stands in was checked; from there on it goes as before.
    if (lstat(at_.c_str(), &found) == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, "look at " + at_.string());
  }

  // Whoever may write to a directory that is not sticky may rename what is in it.
  absl::Status CheckOnTheWay(const struct stat& found) const {
    if (!IsOursOrRoots(found)) return Refuse(at_, found, "this user's or root's");
    if ((found.st_mode & 0022) == 0 || (found.st_mode & S_ISVTX) != 0) return absl::OkStatus();
    if (parts_.empty()) return absl::OkStatus();  // CheckLast says it better
    return Refuse(at_, found, "one that others may not write to, or a sticky one");
  }

  absl::Status CheckLast(const struct stat& found) const {
    if (found.st_uid == geteuid() && (found.st_mode & 0022) == 0) return absl::OkStatus();
    return Refuse(at_, found,
                  fmt::format("one of user {} that others may not write to", geteuid()).c_str());
  }

  const std::string& path_;
  const bool make_;
  std::filesystem::path at_ = "/";
  std::deque<std::string> parts_;  // below `at_`
  int links_ = 0;
};

}  // namespace

absl::Status CheckPrivateDirectory(const std::string& path) {
  UNREFT_CHECK(path.starts_with('/'), "{} is not absolute", path);
  return Walk(path, /*make=*/false).Run();
}

absl::Status CheckPrivateFile(const std::string& path) {
  struct stat found{};
  if (stat(path.c_str(), &found) != 0) return absl::ErrnoToStatus(errno, "look at " + path);
  const mode_t too_much = found.st_uid == 0 ? 0137 : 0177;
  if (IsOursOrRoots(found) && (found.st_mode & too_much) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(fmt::format(
      "'{}' belongs to user {} with mode {:04o}: needed this user's with 0600 or less, or root's "
      "with 0640 or less (chmod 600), since it is secret",
      path, found.st_uid, found.st_mode & 07777));
}

absl::Status MakePrivateDirectory(const std::string& path) {
  UNREFT_CHECK(path.starts_with('/'), "{} is not absolute", path);
  return Walk(path, /*make=*/true).Run();
}

}  // namespace unreft
