// Private directories: those that nobody else can change, or put another in place of. What a
// process finds there is its user's: sockets, locks, records, and the programs it is to start. And
// private files, which nobody else can read.
#pragma once

#include <absl/status/status.h>

#include <string>

namespace unreft {

// OK if `path`, which is absolute, is a directory of this process's user that no others may write
// to, and if nobody but this user and root can replace a directory on the way to it. Symbolic links
// are followed if they are this user's or root's. NotFound if it is absent; PermissionDenied names
// the directory on the way, whose it is, and what to do.
absl::Status CheckPrivateDirectory(const std::string& path);

// As above, after making what is absent of it, whatever the umask: each directory with mode 0700.
absl::Status MakePrivateDirectory(const std::string& path);

// OK unless others could read a secret: as PostgreSQL has it, a file of this user with mode 0600 or
// less, or one of root's with 0640 or less. PermissionDenied names it; NotFound if it is absent.
absl::Status CheckPrivateFile(const std::string& path);

}  // namespace unreft
