#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>

#include "tools/cli/certificates.h"
#include "tools/cli/commands.h"

namespace unreft::cli {
namespace {

constexpr int kDaysMax = 3650;

int Certs(const Context& context, CertificateRequest& request) {
  request.job = context.place.job;
  request.directory = std::filesystem::absolute(request.directory).lexically_normal().string();
  for (const char* local : {"127.0.0.1", "localhost"}) request.hosts.emplace_back(local);
  const auto result = MakeCertificates(request);
  if (!result.ok()) return Fail(context, result.status());
  std::string text = fmt::format("{}: {}\n", request.directory,
                                 result->made_authority ? "a new authority" : "its authority");
  if (!result->made.empty()) text += fmt::format("made: {}\n", fmt::join(result->made, ", "));
  if (!result->kept.empty()) {
    text += fmt::format("kept: {} (--renew makes them anew)\n", fmt::join(result->kept, ", "));
  }
  text += fmt::format(
      "on this machine: unreft --job {} up --nodes N --tls-dir {}\n"
      "on others: to each ca.pem and its own .pem and .key; ca.key signs for the job: keep it off "
      "them\n",
      request.job, request.directory);
  Print(context,
        {{"job", request.job},
         {"directory", request.directory},
         {"made_authority", result->made_authority},
         {"made", result->made},
         {"kept", result->kept}},
        text);
  return kExitOk;
}

}  // namespace

void AddCerts(CLI::App& app, Context& context) {
  auto request = std::make_shared<CertificateRequest>();
  CLI::App* command =
      AddCommand(app, "certs", "make the certificates by which a job's nodes know each other");
  command->add_option("directory", request->directory, "where to put them")->required();
  command
      ->add_option("--nodes", request->nodes,
                   "of so many nodes, spares included: nodeI.pem and nodeI.key of each")
      ->required()
      ->check(CLI::Range(1, 65536));
  command
      ->add_option("--host", request->hosts,
                   "a name or IP address of the meta store, beside those of this machine's "
                   "loopback; may be given again")
      ->take_all();
  command->add_option("--days", request->days, "how long certificates are valid")
      ->check(CLI::Range(1, kDaysMax))
      ->capture_default_str();
  command->add_flag("--renew", request->renew, "make anew those that are there");
  command->footer(
      "Writes ca.pem, ca.key (if there is no authority yet), meta.pem, meta.key and the nodes' "
      "files; keys are this user's alone.");
  OnChosenForAll(command, context, [&context, request] { return Certs(context, *request); });
}

}  // namespace unreft::cli
