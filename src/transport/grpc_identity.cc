#include "transport/grpc_identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/security/auth_context.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "transport/grpc_status.h"
#include "transport/tls_files.h"

namespace unreft {
namespace {

namespace tls_api = grpc::experimental;

std::string ToString(grpc::string_ref text) { return {text.data(), text.size()}; }

// The job that the client says it belongs to.
absl::Status CheckSaidJob(const grpc::CallbackServerContext& context, const std::string& job) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(grpc_status::kJobKey);
  if (found == metadata.end()) {
    return absl::PermissionDeniedError(
        fmt::format("this node serves job {}, the caller names none", job));
  }
  const std::string said = ToString(found->second);
  if (said == job) return absl::OkStatus();
  return absl::PermissionDeniedError(
      fmt::format("this node serves job {}, the caller is of job {}", job, said));
}

// The job that a certificate was made for.
absl::Status CheckUris(const std::vector<std::string>& uris, const std::string& job,
                       std::string_view whose) {
  const std::string wanted = GrpcJobUri(job);
  if (std::ranges::find(uris, wanted) != uris.end()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      fmt::format("the {} is for [{}], not for {}", whose, fmt::join(uris, ", "), wanted));
}

class PlainIdentity final : public GrpcIdentity {
 public:
  explicit PlainIdentity(std::string job) : job_(std::move(job)) {}

  std::shared_ptr<grpc::ServerCredentials> ForServer() const override {
    return grpc::InsecureServerCredentials();
  }
  std::shared_ptr<grpc::ChannelCredentials> ForChannel(
      std::shared_ptr<ServerRefusal> /*refusal*/) const override {
    return grpc::InsecureChannelCredentials();
  }
  absl::Status CheckClient(const grpc::CallbackServerContext& context) const override {
    return CheckSaidJob(context, job_);
  }

 private:
  const std::string job_;
};

class TlsIdentity final : public GrpcIdentity {
 public:
  TlsIdentity(std::string job, std::shared_ptr<TlsCertificates> certificates)
      : job_(std::move(job)), certificates_(std::move(certificates)) {}

  std::shared_ptr<grpc::ServerCredentials> ForServer() const override {
    return certificates_->ForServer();
  }

  std::shared_ptr<grpc::ChannelCredentials> ForChannel(
      std::shared_ptr<ServerRefusal> refusal) const override {
    return certificates_->ForChannel(
        [job = job_](tls_api::TlsCustomVerificationCheckRequest& request) {
          std::vector<std::string> uris;
          for (const grpc::string_ref& uri : request.uri_names()) uris.push_back(ToString(uri));
          return CheckUris(uris, job,
                           fmt::format("server's certificate, that of {},",
                                       tls_files::SubjectOf(ToString(request.peer_cert()))));
        },
        [refusal = std::move(refusal)](const absl::Status& why) { refusal->Set(why); });
  }

  absl::Status CheckClient(const grpc::CallbackServerContext& context) const override {
    const auto auth = context.auth_context();
    if (!auth || !auth->IsPeerAuthenticated()) {
      return absl::UnauthenticatedError("the caller shows no certificate");
    }
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : auth->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
      uris.push_back(ToString(uri));
    }
    std::string subject = "(none)";
    for (const grpc::string_ref& pem : auth->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME)) {
      subject = tls_files::SubjectOf(ToString(pem));
    }
    absl::Status status =
        CheckUris(uris, job_, fmt::format("caller's certificate, that of {},", subject));
    if (status.ok()) status = CheckSaidJob(context, job_);
    if (!status.ok()) certificates_->LogRefused(context.peer(), subject, status);
    return status;
  }

 private:
  const std::string job_;
  const std::shared_ptr<TlsCertificates> certificates_;  // gRPC shares it
};

}  // namespace

void ServerRefusal::Set(absl::Status why) {
  const std::lock_guard lock(mutex_);
  why_ = std::move(why);
}

absl::Status ServerRefusal::Get() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

std::string GrpcJobUri(const std::string& job) { return "unreft://job/" + job; }

absl::StatusOr<std::shared_ptr<TlsCertificates>> NewNodeCertificates(const std::string& job,
                                                                     const GrpcTlsOptions& tls,
                                                                     Executor& executor, Log* log) {
  return TlsCertificates::Create({.name = "transport_tls",
                                  .files = {tls.ca_file, tls.cert_file, tls.key_file},
                                  .use = TlsUse::kBoth,
                                  .uri = GrpcJobUri(job),
                                  .reload = tls.reload},
                                 executor, log);
}

std::unique_ptr<GrpcIdentity> GrpcIdentity::Create(const std::string& job,
                                                   std::shared_ptr<TlsCertificates> certificates) {
  if (certificates == nullptr) return std::make_unique<PlainIdentity>(job);
  return std::make_unique<TlsIdentity>(job, std::move(certificates));
}

}  // namespace unreft
